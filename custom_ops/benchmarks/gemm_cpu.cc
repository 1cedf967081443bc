// GFLOP/s of the product on this CPU, for each instruction set and blocking:
//
//   gemm_cpu [ISA [half|bfloat16|float [float|same [NAME=VALUE[,VALUE...] [M,N,K ...]]]]]
//
// NAME is a member of `Blocking` (cpu/gemm/gemm_kernel.h), to be tried with other values:
// the kernel as it is comes first in a row, and all take turns.
// benchmarks/gemm_blocking.py makes tables of it.
//
//   cmake --build build/custom_ops --target gemm_cpu &&
//     build/custom_ops/gemm_cpu avx512 half

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/gemm/gemm_kernel.h"
#include "cpu/kernels.h"

namespace keras_mp {
namespace {

struct Size {
  std::int64_t m, n, k;
};

const std::vector<Size> kSizes = {
    {64, 64, 64},       {128, 128, 128},    {256, 256, 256},    {512, 512, 512},
    {1024, 1024, 1024}, {2048, 2048, 2048}, {1, 4096, 1024},    {4, 4096, 1024},
    {8, 4096, 1024},    {16, 4096, 1024},   {32, 4096, 1024},   {128, 4096, 2048},
    {64, 1024, 4096},   {1760, 16, 1760},   {1760, 128, 1760},  {2560, 64, 2560},
    {4096, 32, 4096},   {5124, 700, 2048},  {35, 700, 2048},    {16, 1760, 1760},
    {32, 4096, 4096}};

// Threads that spin while they wait for work, and yield to other threads meanwhile.
class SpinningThreads {
 public:
  explicit SpinningThreads(int count) {
    for (int i = 1; i < count; ++i) threads_.emplace_back([this] { Serve(); });
    parallel = {count, this, [](void* self, std::int64_t count, void* context,
                                Parallel::Body body) {
                  static_cast<SpinningThreads*>(self)->Run(count, context, body);
                }};
  }

  ~SpinningThreads() {
    stop_ = true;
    ++round_;
    for (auto& thread : threads_) thread.join();
  }

  Parallel parallel;

 private:
  void Run(std::int64_t count, void* context, Parallel::Body body) {
    count_ = count;
    context_ = context;
    body_ = body;
    next_ = 0;
    busy_ = static_cast<int>(threads_.size());
    ++round_;
    Work();
    while (busy_ > 0) std::this_thread::yield();
  }

  void Work() {
    for (std::int64_t i; (i = next_++) < count_;) body_(context_, i);
  }

  void Serve() {
    for (int seen = 0;;) {
      while (round_ == seen) std::this_thread::yield();
      seen = round_;
      if (stop_) return;
      Work();
      --busy_;
    }
  }

  std::vector<std::thread> threads_;
  std::atomic<int> round_{0}, busy_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> next_{0};
  std::int64_t count_ = 0;
  void* context_ = nullptr;
  Parallel::Body body_ = nullptr;
};

// Seconds a call of each kernel: the median of a few rounds in which they take turns.
std::vector<double> Seconds(const std::vector<GemmKernel>& kernels, const Gemm& gemm,
                            const Parallel& parallel) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 7;
  const auto run = [&](const GemmKernel& kernel, int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      if (!GemmWith(kernel, gemm, parallel).ok()) std::abort();
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / count;
  };
  const double once = std::min(run(kernels[0], 1), run(kernels[0], 1));
  const int count = std::max(1, static_cast<int>(0.01 / once));
  std::vector<std::vector<double>> times(kernels.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      times[i].push_back(run(kernels[i], count));
    }
  }
  std::vector<double> medians;
  for (auto& some : times) {
    std::sort(some.begin(), some.end());
    medians.push_back(some[kRounds / 2]);
  }
  return medians;
}

void Measure(const std::vector<GemmKernel>& kernels, DataType type, DataType output,
             const std::vector<Size>& sizes, const Parallel& parallel) {
  // A 1 of FP32, or two of 16 bits.
  const std::uint32_t one = type == DataType::kHalf       ? 0x3c003c00
                            : type == DataType::kBfloat16 ? 0x3f803f80
                                                          : 0x3f800000;
  for (const auto& [m, n, k] : sizes) {
    const std::vector<std::uint32_t> a(m * k, one), b(k * n, one);
    std::vector<float> c(m * n);
    for (int layout = 0; layout < 3; ++layout) {  // as in training: NN, NT, TN
      Gemm gemm;
      gemm.m = m;
      gemm.n = n;
      gemm.k = k;
      gemm.transpose_a = layout & 2;
      gemm.transpose_b = layout & 1;
      gemm.input = type;
      gemm.output = output;
      gemm.a = a.data();
      gemm.b = b.data();
      gemm.c = c.data();
      gemm.lda = gemm.transpose_a ? m : k;
      gemm.ldb = gemm.transpose_b ? k : n;
      gemm.ldc = n;
      std::printf("%5ld %5ld %5ld %s%s", m, n, k, layout & 2 ? "T" : "N",
                  layout & 1 ? "T" : "N");
      for (const double seconds : Seconds(kernels, gemm, parallel)) {
        std::printf(" %6.1f", 2e-9 * m * n * k / seconds);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

[[noreturn]] void Refuse(const std::string& what) {
  std::fprintf(stderr, "error: %s. See the head of gemm_cpu.cc.\n", what.c_str());
  std::exit(2);
}

// Sets a member to what the workspace has room for.
void Change(Blocking& blocking, const std::string& name, std::int64_t value) {
  const auto set = [&](std::int64_t& member, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) {
      Refuse(name + " must be from " + std::to_string(least) + " to " +
             std::to_string(most) + ". Received: " + std::to_string(value));
    }
    member = value;
  };
  if (name == "steps") {
    set(blocking.steps, 1, kMaxSteps);
  } else if (name == "max_rows") {
    set(blocking.max_rows, 1, blocking.max_rows);
  } else if (name == "max_columns") {
    set(blocking.max_columns, 1, blocking.max_columns);
  } else if (name == "skinny_rows_row_major_b") {
    set(blocking.skinny_rows_row_major_b, 0, kMaxSkinnyRows);
  } else if (name == "skinny_rows_column_major_b") {
    set(blocking.skinny_rows_column_major_b, 0, kMaxSkinnyRows);
  } else {
    Refuse("no member of Blocking is named " + name);
  }
}

// The kernel as it is, and with each of the values of NAME=VALUE[,VALUE...].
std::vector<GemmKernel> Changed(const GemmKernel& kernel, const std::string& option) {
  const auto equals = option.find('=');
  if (equals == std::string::npos) Refuse("not NAME=VALUE[,VALUE...]: " + option);
  std::vector<GemmKernel> kernels = {kernel};
  for (auto at = equals; at != std::string::npos; at = option.find(',', at + 1)) {
    kernels.push_back(kernel);
    Change(kernels.back().blocking, option.substr(0, equals),
           std::atoll(option.c_str() + at + 1));
  }
  return kernels;
}

Size SizeOf(const char* text) {
  Size size;
  if (std::sscanf(text, "%ld,%ld,%ld", &size.m, &size.n, &size.k) == 3) return size;
  Refuse(std::string("not M,N,K: ") + text);
}

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  using namespace keras_mp;
  const auto runs = [&](Isa isa) {
    return IsSupported(isa) && (argc < 2 || std::strcmp(argv[1], Name(isa)) == 0);
  };
  if (std::none_of(std::begin(kIsas), std::end(kIsas), runs)) {
    Refuse(std::string("this machine has no instruction set named ") + argv[1]);
  }
  std::vector<Size> sizes;
  for (int i = 5; i < argc; ++i) sizes.push_back(SizeOf(argv[i]));
  if (sizes.empty()) sizes = kSizes;
  SpinningThreads threads(static_cast<int>(std::thread::hardware_concurrency()));
  for (Isa isa : kIsas) {
    if (!runs(isa)) continue;
    for (const auto& [name, type] : {std::pair{"half", DataType::kHalf},
                                     {"bfloat16", DataType::kBfloat16},
                                     {"float", DataType::kFloat}}) {
      if (argc > 2 && std::strcmp(argv[2], name) != 0) continue;
      for (const bool same : {true, false}) {
        if (argc > 3 && same != (std::strcmp(argv[3], "same") == 0)) continue;
        const DataType output = same ? type : DataType::kFloat;
        const GemmKernel& kernel = *KernelsOf(isa)->GemmOf(type);
        std::printf("%s, %s, output %s: GFLOP/s\n", Name(isa), name,
                    same ? "the same" : "float");
        Measure(argc > 4 ? Changed(kernel, argv[4]) : std::vector{kernel}, type, output,
                sizes, threads.parallel);
      }
    }
  }
}
