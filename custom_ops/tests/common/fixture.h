// The fixture of the tests of the CPU kernels.

#ifndef KERAS_MP_TESTS_COMMON_FIXTURE_H_
#define KERAS_MP_TESTS_COMMON_FIXTURE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "common/half.h"
#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"

namespace keras_mp {

inline int failures = 0;

#define EXPECT(condition, ...)                                \
  do {                                                        \
    if (!(condition) && ++failures <= 20) {                   \
      std::printf("%s:%d: %s\n  ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                               \
      std::printf("\n");                                      \
    }                                                         \
  } while (false)

constexpr DataType kTypes[] = {DataType::kHalf, DataType::kBfloat16};

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> found;
  for (Isa isa : kIsas) {
    if (IsSupported(isa)) found.push_back(isa);
  }
  return found;
}

inline float From16(DataType type, std::uint16_t bits) {
  return type == DataType::kHalf ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

inline std::uint16_t To16(DataType type, float x) {
  return type == DataType::kHalf ? FloatToHalf(x) : FloatToBfloat16(x);
}

// The error bound of `value` after one rounding to 16 bits, where it erred by `error`
// before.
inline double Rounded(DataType type, double value, double error) {
  const double unit = type == DataType::kHalf ? 0x1p-11 : 0x1p-8;
  const double smallest = type == DataType::kHalf ? 0x1p-25 : 0x1p-127;
  return error + std::max(unit * (std::abs(value) + error), smallest);
}

inline std::vector<std::uint16_t> Numbers(DataType type, std::int64_t count, float mean,
                                          float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::uint16_t> numbers(count);
  for (auto& number : numbers) number = To16(type, normal(random));
  return numbers;
}

inline std::vector<float> Floats(std::int64_t count, float mean, float deviation,
                                 std::mt19937& random) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> numbers(count);
  for (auto& number : numbers) number = normal(random);
  return numbers;
}

// `Parallel::run` for a test: `state` is an int, the number of threads.
inline void RunOnThreads(void* state, std::int64_t count, void* context,
                         Parallel::Body body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next++) < count;) body(context, i);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < *static_cast<int*>(state); ++i) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
}

// Returns the exit status of a test.
inline int Report() {
  if (failures > 0) std::printf("%d failures\n", failures);
  return failures > 0;
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_FIXTURE_H_
