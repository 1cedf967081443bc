// How fast is the update step on this GPU, compared with a copy of as many bytes? Prints
// a table in Markdown.
//
//   update_cuda_benchmark
//
// FP16 gradients, FP32 masters and FP16 weights. Each time is the median of 15 calls of
// the check and the step, measured on the device. The limit is the number of bytes that
// both read and write, divided by the bandwidth of cudaMemcpyAsync, which is measured
// first; arrays that stay in the L2 cache may take less. The time of the host is that of
// putting both on the stream.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "keras_mp/update_cuda.h"

namespace keras_mp {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void Check(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message);
  std::exit(1);
}

// Memory of zeros.
class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    Check(cudaMalloc(&data_, bytes));
    Check(cudaMemset(data_, 0, bytes));
  }
  ~Memory() { Check(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class Number>
  Number* As() const {
    return static_cast<Number*>(data_);
  }

 private:
  void* data_ = nullptr;
};

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

struct Times {
  double device_ms, host_ms;
};

Times Measure(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<double> device, host;
  for (int i = 0; i < 18; ++i) {
    Check(cudaStreamSynchronize(stream));
    Check(cudaEventRecord(begin, stream));
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i < 3) continue;  // warm-up
    device.push_back(ms);
    host.push_back(spent.count());
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return {Median(device), Median(host)};
}

// Bytes a millisecond that a copy reads and writes.
double CopyBandwidth(cudaStream_t stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const Memory from(kBytes), to(kBytes);
  const Times times = Measure(stream, [&] {
    Check(cudaMemcpyAsync(to.As<char>(), from.As<char>(), kBytes,
                          cudaMemcpyDeviceToDevice, stream));
  });
  return 2 * kBytes / times.device_ms;
}

struct Rule {
  const char* name;
  UpdateRule rule;
  int slots;
};

constexpr Rule kRules[] = {{"SGD", UpdateRule::kSgd, 0},
                           {"momentum", UpdateRule::kMomentum, 1},
                           {"Adam", UpdateRule::kAdam, 2}};

struct List {
  const char* name;
  std::int64_t count, size;
};

constexpr List kLists[] = {{"16 x 1M", 16, 1 << 20},      {"400 x 10K", 400, 10000},
                           {"10,000 x 10K", 10000, 10000}, {"16 x 10K", 16, 10000},
                           {"16 x 31.25M", 16, 31250000}};

// The whole step of a list: the check, then the update.
void Row(const List& list, const Rule& rule, double bandwidth, cudaStream_t stream) {
  // Every array begins at a multiple of 256 bytes, as frameworks allocate them.
  const std::int64_t pitch = (list.size + 127) / 128 * 128;
  const auto total = static_cast<std::size_t>(list.count * pitch);
  const Memory gradients(total * 2), masters(total * 4), weights(total * 2);
  const Memory slots(total * 4 * std::max(1, rule.slots));
  std::vector<Gradient> list_of_gradients;
  std::vector<Parameter> parameters;
  for (std::int64_t i = 0; i < list.count; ++i) {
    const std::int64_t at = i * pitch;
    Parameter parameter;
    parameter.gradient = {list.size, DataType::kHalf, gradients.As<char>() + 2 * at};
    for (int k = 0; k < rule.slots; ++k) {
      parameter.slots[k].values = slots.As<float>() + k * list.count * pitch + at;
    }
    parameter.pair = {list.size, masters.As<float>() + at, DataType::kHalf,
                      weights.As<std::uint16_t>() + at};
    list_of_gradients.push_back(parameter.gradient);
    parameters.push_back(parameter);
  }
  const Memory hyperparameters(sizeof(UpdateHyperparameters));
  const Memory scale(sizeof(float)), finite(sizeof(bool));
  const Memory largest(static_cast<std::size_t>(list.count) * sizeof(float));
  UpdateHyperparameters host_hyperparameters;
  host_hyperparameters.scale = 32768;
  host_hyperparameters.epsilon = 1e-7f;
  const bool yes = true;
  Check(cudaMemcpy(hyperparameters.As<void>(), &host_hyperparameters,
                   sizeof host_hyperparameters, cudaMemcpyHostToDevice));
  Check(cudaMemcpy(scale.As<void>(), &host_hyperparameters.scale, sizeof(float),
                   cudaMemcpyHostToDevice));
  Check(cudaMemcpy(finite.As<void>(), &yes, sizeof yes, cudaMemcpyHostToDevice));
  GradientCheck check;
  check.count = list.count;
  check.gradients = list_of_gradients.data();
  check.scale = scale.As<float>();
  check.largest = largest.As<float>();
  Update update;
  update.count = list.count;
  update.parameters = parameters.data();
  update.rule = rule.rule;
  update.hyperparameters = hyperparameters.As<UpdateHyperparameters>();
  update.finite = finite.As<bool>();
  const Times times = Measure(stream, [&] {
    Check(CheckGradientsCuda(check, nullptr, stream));
    Check(UpdateCuda(update, stream));
  });
  // The check reads gradients; the step reads them again, and reads and writes the rest.
  const double bytes = 2.0 + 2 + 2 * (4 + 2 + 4 * rule.slots);
  const double limit = bytes * static_cast<double>(list.count * list.size) / bandwidth;
  std::printf("| %s | %s | %.4f | %.4f | %.2f | %.4f |\n", list.name, rule.name, limit,
              times.device_ms, limit / times.device_ms, times.host_ms);
  std::fflush(stdout);
}

int Main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU\n");
    return 77;
  }
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0));
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  const double bandwidth = CopyBandwidth(stream);
  std::printf("# The update step on %s\n\nA copy moves %.0f GB/s. Milliseconds.\n\n",
              device.name, bandwidth / 1e6);
  std::printf("| variables | optimizer | limit | device | limit / device | host |\n"
              "|---|---|---|---|---|---|\n");
  for (const List& list : kLists) {
    for (const Rule& rule : kRules) Row(list, rule, bandwidth, stream);
  }
  Check(cudaStreamDestroy(stream));
  return 0;
}

}  // namespace
}  // namespace keras_mp

int main() { return keras_mp::Main(); }
