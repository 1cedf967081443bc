// Any processor: vectors of 4 numbers that the compiler maps to what there is.

#ifndef KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_
#define KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_

#include <cstdint>

#include "common/half.h"

namespace keras_mp {

struct Portable {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 6;
  static constexpr int kTerms = 256;  // of a sum that are packed at a time
  // Products of few rows: how many rows are computed at a time, and up to how many it
  // is worth it, where the rows of B lie in memory one after the other, or its columns.
  static constexpr int kSweptRows = 2;
  static constexpr int kDotRows = 2;
  static constexpr int kFewRowsOfRows = 8, kFewRowsOfColumns = 8;

  typedef float Float __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));

  static Float Sqrt(Float x) {
    return Float{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
                 __builtin_sqrtf(x[3])};
  }

  static Float LoadHalf(const std::uint16_t* x) {
    return Float{HalfToFloat(x[0]), HalfToFloat(x[1]), HalfToFloat(x[2]),
                 HalfToFloat(x[3])};
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    for (int i = 0; i < kWidth; ++i) to[i] = FloatToHalf(x[i]);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_
