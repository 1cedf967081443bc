// Prints the peak of the machine: the GFLOP/s of FP32 multiply-adds on registers alone.
//
//   fma_peak [threads]
//
//   cmake --build build/custom_ops --target fma_peak &&
//     build/custom_ops/fma_peak 2

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float16 __attribute__((vector_size(64)));

// Independent chains of multiply-adds, enough to hide the latency of an instruction.
template <class Vector, int kChains>
inline __attribute__((always_inline)) double Run(int steps) {
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999f;
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  float total = 0;
  for (const Vector& sum : sums) total += sum[0];
  volatile float keep = total;
  static_cast<void>(keep);
  return 2.0 * (sizeof(Vector) / sizeof(float)) * kChains * steps / seconds.count() / 1e9;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double RunAvx512(int steps) {
  return Run<Float16, 12>(steps);
}
__attribute__((target("avx2,fma"))) double RunAvx2(int steps) {
  return Run<Float8, 12>(steps);
}
#endif
double RunPlain(int steps) { return Run<Float4, 12>(steps); }

double Measure(int steps) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return RunAvx512(steps);
  if (__builtin_cpu_supports("avx2")) return RunAvx2(steps);
#endif
  return RunPlain(steps);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<double> rates(threads);
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&rates, i] { rates[i] = Measure(1'000'000); });
    }
    for (auto& worker : workers) worker.join();
    double total = 0;
    for (double rate : rates) total += rate;
    best = std::max(best, total);
  }
  std::printf("%.1f\n", best);
  return 0;
}
