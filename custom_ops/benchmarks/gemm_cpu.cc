// GFLOP/s of the product on this CPU, for each instruction set and blocking:
//
//   gemm_cpu [ISA [half|bfloat16 [float|same [NAME=VALUE ...]]]]
//
// NAME is a member of `Blocking` (cpu/gemm/gemm_kernel.h) to be tried with another VALUE.
//
//   cmake --build build/cpp-plain --target gemm_cpu &&
//     build/cpp-plain/gemm_cpu avx512 half

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/gemm/gemm_kernel.h"
#include "cpu/kernels.h"

namespace keras_mp {
namespace {

constexpr std::int64_t kSizes[][3] = {
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

// Seconds a call: the median of a few runs.
double Seconds(const GemmKernel& kernel, const Gemm& gemm, const Parallel& parallel) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      if (!GemmWith(kernel, gemm, parallel).ok()) std::abort();
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / count;
  };
  const double once = std::min(run(1), run(1));
  const int count = std::max(1, static_cast<int>(0.01 / once));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(run(count));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Measure(const GemmKernel& kernel, DataType type, DataType output,
             const Parallel& parallel) {
  const std::uint16_t one = type == DataType::kHalf ? 0x3c00 : 0x3f80;
  for (const auto& [m, n, k] : kSizes) {
    const std::vector<std::uint16_t> a(m * k, one), b(k * n, one);
    std::vector<float> c(m * n);
    std::printf("%5ld %5ld %5ld", m, n, k);
    for (int layout = 0; layout < 4; ++layout) {
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
      const double seconds = Seconds(kernel, gemm, parallel);
      std::printf("  %s%s %6.1f", layout & 2 ? "T" : "N", layout & 1 ? "T" : "N",
                  2e-9 * m * n * k / seconds);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void Change(Blocking& blocking, const std::string& option) {
  const auto at = option.find('=');
  const std::string name = option.substr(0, at);
  const std::int64_t value = std::atoll(option.c_str() + at + 1);
  if (name == "steps") blocking.steps = value;
  else if (name == "max_rows") blocking.max_rows = value;
  else if (name == "max_columns") blocking.max_columns = value;
  else if (name == "skinny_rows_row_major_b")
    blocking.skinny_rows_row_major_b = value;
  else if (name == "skinny_rows_column_major_b")
    blocking.skinny_rows_column_major_b = value;
  else std::exit((std::fprintf(stderr, "no member %s of Blocking\n", name.c_str()), 2));
}

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  using namespace keras_mp;
  SpinningThreads threads(static_cast<int>(std::thread::hardware_concurrency()));
  for (Isa isa : kIsas) {
    const bool wanted = argc < 2 || std::strcmp(argv[1], Name(isa)) == 0;
    if (!IsSupported(isa) || !wanted) continue;
    for (DataType type : {DataType::kHalf, DataType::kBfloat16}) {
      const bool half = type == DataType::kHalf;
      if (argc > 2 && half != (std::strcmp(argv[2], "half") == 0)) continue;
      for (DataType output : {type, DataType::kFloat}) {
        const bool same = output == type;
        if (argc > 3 && same != (std::strcmp(argv[3], "same") == 0)) continue;
        const Kernels& kernels = *KernelsOf(isa);
        GemmKernel kernel = half ? *kernels.half_gemm : *kernels.bfloat16_gemm;
        for (int i = 4; i < argc; ++i) Change(kernel.blocking, argv[i]);
        std::printf("%s, %s, output %s: GFLOP/s\n", Name(isa),
                    half ? "half" : "bfloat16", same ? "the same" : "float");
        Measure(kernel, type, output, threads.parallel);
      }
    }
  }
}
