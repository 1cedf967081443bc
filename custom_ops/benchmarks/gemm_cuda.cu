// How fast is the FP16 product on this GPU, compared with the FP32 product and with the
// fastest algorithm of cuBLASLt? The sizes are DeepBench's training GEMMs. Prints a table
// in Markdown.
//
//   gemm_cuda_benchmark custom_ops/benchmarks/deepbench_gemm_train.csv [every nth row]
//
// FP16 in and out, FP32 accumulation; the FP32 product is cuBLASLt's without TF32. Each
// time is the median of 7 measurements of a CUDA graph of many products, so that the
// host's time for a launch does not count; it is printed apart. Data stay in the L2 cache
// between products where they fit, as in DeepBench.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "cuda/gemm/cublaslt.h"
#include "keras_mp/gemm_cuda.h"

namespace keras_mp {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr std::size_t kCublasLtWorkspace = std::size_t{32} << 20;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    Check(cudaMalloc(&data_, bytes));
    Check(cudaMemset(data_, 0, bytes));
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Fills memory with random bits that are FP16 or FP32 numbers of magnitudes from 0.5 to
// 2. Zeros would need less power, and so would be faster.
__global__ void FillKernel(unsigned* words, std::size_t count, bool half) {
  const std::size_t first = blockIdx.x * std::size_t{256} + threadIdx.x;
  for (std::size_t i = first; i < count; i += gridDim.x * std::size_t{256}) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    words[i] = half ? (x & 0x87ff87ffu) | 0x38003800u : (x & 0x80ffffffu) | 0x3f000000u;
  }
}

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Device time of one call of `enqueue` in milliseconds; NaN where the call is refused.
double Time(cudaStream_t stream, const std::function<Status()>& enqueue) {
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  float ms = 0;
  Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) {
    Check(cudaEventRecord(begin, stream));
    status = enqueue();
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    Check(cudaEventElapsedTime(&ms, begin, end));
  }
  std::vector<double> times;
  if (status.ok()) {
    const int repeats =
        static_cast<int>(std::clamp(10.0 / std::max(1e-3f, ms), 3.0, 500.0));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < repeats && status.ok(); ++i) status = enqueue();
    Check(cudaStreamEndCapture(stream, &graph));
    Check(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 8; ++i) {
      Check(cudaEventRecord(begin, stream));
      Check(cudaGraphLaunch(executable, stream));
      Check(cudaEventRecord(end, stream));
      Check(cudaEventSynchronize(end));
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) times.push_back(ms / repeats);  // the first warms up
    }
    Check(cudaGraphExecDestroy(executable));
    Check(cudaGraphDestroy(graph));
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return status.ok() ? Median(times) : kNone;
}

// Host time to put one product on the stream, in microseconds.
double HostTime(cudaStream_t stream, const std::function<Status()>& enqueue) {
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    Check(cudaStreamSynchronize(stream));
    const auto begin = std::chrono::steady_clock::now();
    if (!enqueue().ok()) return kNone;
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    times.push_back(spent.count());
  }
  Check(cudaStreamSynchronize(stream));
  return Median(times);
}

struct Row {
  long long m, n, k;
  int transpose_a, transpose_b;
  double v100_fp32, v100_mixed;
};

std::vector<Row> ReadRows(const char* path, int step) {
  std::vector<Row> rows;
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return rows;
  char line[256];
  for (int i = 0; std::fgets(line, sizeof line, file) != nullptr;) {
    Row r;
    const int read = std::sscanf(line, "%lld,%lld,%lld,%d,%d,%lf,%lf", &r.m, &r.n, &r.k,
                                 &r.transpose_a, &r.transpose_b, &r.v100_fp32,
                                 &r.v100_mixed);
    if (read == 7 && i++ % step == 0) rows.push_back(r);
  }
  std::fclose(file);
  return rows;
}

// The matrices of DeepBench are column-major; the same memory, row-major, is
// C^T = B^T A^T.
Gemm ToGemm(const Row& r, DataType type) {
  Gemm g;
  g.m = r.n;
  g.n = r.m;
  g.k = r.k;
  g.transpose_a = r.transpose_b;
  g.transpose_b = r.transpose_a;
  g.input = g.output = g.bias_type = type;
  g.lda = g.transpose_a ? g.m : g.k;
  g.ldb = g.transpose_b ? g.k : g.n;
  g.ldc = g.n;
  return g;
}

struct Means {
  double sum_log = 0;
  double smallest = HUGE_VAL;
  int count = 0;
  void Add(double ratio) {
    if (!std::isfinite(ratio)) return;
    sum_log += std::log(ratio);
    smallest = std::min(smallest, ratio);
    ++count;
  }
  double Mean() const { return count > 0 ? std::exp(sum_log / count) : kNone; }
};

void Fill(const Memory& memory, std::size_t bytes, bool half) {
  FillKernel<<<1024, 256>>>(static_cast<unsigned*>(memory.data()), bytes / 4, half);
  Check(cudaGetLastError());
}

int Main(const char* path, int step) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU\n");
    return 77;
  }
  const std::vector<Row> rows = ReadRows(path, step);
  if (rows.empty()) {
    std::printf("no rows in %s\n", path);
    return 1;
  }
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0));
  int runtime = 0;
  Check(cudaRuntimeGetVersion(&runtime));
  const char* why = "";
  const bool has_lt = IsAvailable(CudaRoute::kCublasLt, &why);
  std::printf("# FP16 GEMM, FP32 accumulation, on %s\n\n", device.name);
  std::printf("%d multiprocessors, CUDA runtime %d.%d, cuBLASLt %s. TFLOP/s.\n\n",
              device.multiProcessorCount, runtime / 1000, runtime % 1000 / 10,
              has_lt ? "found" : why);
  std::printf(
      "| m, n, k, op | FP32 | cuBLASLt | its best of 8 | own | cuBLASLt / best | own / "
      "best | cuBLASLt / FP32 | own / FP32 | V100 mixed / FP32, published |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");

  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  const Memory workspace(kWorkspace);
  Means default_of_best, own_of_best, default_of_fp32, own_of_fp32, published;
  for (const Row& r : rows) {
    const std::size_t a_count = static_cast<std::size_t>(r.n * r.k);
    const std::size_t b_count = static_cast<std::size_t>(r.k * r.m);
    const std::size_t c_count = static_cast<std::size_t>(r.m * r.n);
    const Memory a(a_count * 4 + 4);
    const Memory b(b_count * 4 + 4);
    const Memory c(c_count * 4);
    Gemm half = ToGemm(r, DataType::kHalf);
    Gemm full = ToGemm(r, DataType::kFloat);
    for (Gemm* g : {&half, &full}) {
      g->a = a.data();
      g->b = b.data();
      g->c = c.data();
    }

    Fill(a, a_count * 4, false);
    Fill(b, b_count * 4, false);
    Check(cudaDeviceSynchronize());
    double fp32 = kNone;
    double top = kNone;
    double best = kNone;
    if (has_lt) {
      fp32 = Time(stream, [&] {
        return cuda::CublasLtProduct(full, kCublasLtWorkspace, 0, nullptr,
                                     workspace.data(), kWorkspace, stream);
      });
    }
    Fill(a, a_count * 4, true);
    Fill(b, b_count * 4, true);
    Check(cudaDeviceSynchronize());
    if (has_lt) {
      top = Time(stream, [&] {
        return GemmCuda(half, CudaRoute::kCublasLt, workspace.data(), kWorkspace, stream);
      });
      best = top;
      int count = 0;
      cuda::CublasLtAlgorithmCount(half, kCublasLtWorkspace, &count);
      for (int rank = 1; rank < count; ++rank) {
        best = std::fmin(best, Time(stream, [&] {
                           return cuda::CublasLtProduct(half, kCublasLtWorkspace, rank,
                                                        nullptr, workspace.data(),
                                                        kWorkspace, stream);
                         }));
      }
    }
    const double own = Time(stream, [&] {
      return GemmCuda(half, CudaRoute::kOwn, workspace.data(), kWorkspace, stream);
    });

    const double tera = 2e-9 * static_cast<double>(r.m) * static_cast<double>(r.n) *
                        static_cast<double>(r.k);
    const double v100 = r.v100_fp32 / r.v100_mixed;
    std::printf("| %lld, %lld, %lld %c%c | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | "
                "%.2f | %.2f | %.2f |\n",
                r.m, r.n, r.k, r.transpose_a ? 'T' : 'N', r.transpose_b ? 'T' : 'N',
                tera / fp32, tera / top, tera / best, tera / own, best / top, best / own,
                fp32 / top, fp32 / own, v100);
    std::fflush(stdout);
    default_of_best.Add(best / top);
    own_of_best.Add(best / own);
    default_of_fp32.Add(fp32 / top);
    own_of_fp32.Add(fp32 / own);
    published.Add(v100);
  }
  std::printf("| geometric mean | | | | | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
              default_of_best.Mean(), own_of_best.Mean(), default_of_fp32.Mean(),
              own_of_fp32.Mean(), published.Mean());
  std::printf("| smallest | | | | | %.2f | %.2f | %.2f | %.2f | %.2f |\n\n",
              default_of_best.smallest, own_of_best.smallest, default_of_fp32.smallest,
              own_of_fp32.smallest, published.smallest);

  const Memory small(3 * 64 * 64 * 2);
  Gemm g = ToGemm({64, 64, 64, 0, 0, 0, 0}, DataType::kHalf);
  g.a = g.b = g.c = small.data();
  for (const CudaRoute route : {CudaRoute::kOwn, CudaRoute::kCublasLt}) {
    if (route == CudaRoute::kCublasLt && !has_lt) continue;
    std::printf("Host time of a launch, %s: %.1f us.\n", Name(route),
                HostTime(stream, [&] {
                  return GemmCuda(g, route, workspace.data(), kWorkspace, stream);
                }));
  }
  Check(cudaStreamDestroy(stream));
  return 0;
}

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: %s deepbench_gemm_train.csv [every nth row]\n", argv[0]);
    return 1;
  }
  const int step = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1;
  return keras_mp::Main(argv[1], step);
}
