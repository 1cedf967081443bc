// Any processor: FP32 vectors of 4 lanes, which the compiler maps to its registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_
#define KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/half.h"

namespace keras_mp {

struct Portable {
  static constexpr int kWidth = 4;
  static constexpr int kMicroRows = 6;     // MR
  static constexpr int kStepsPerBlock = 256;  // KC: steps along k packed at a time
  static constexpr int kTileColumns = 256;  // NC: columns of a tile of C
  // The skinny GEMM: rows computed at a time, and up to how many rows it is faster than
  // packing, for row-major (sweep) and column-major (dot) B.
  static constexpr int kSweptRows = 2;
  static constexpr int kDotRows = 2;
  static constexpr int kSkinnyRowsRowMajorB = 8, kSkinnyRowsColumnMajorB = 8;

  typedef float Float __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));
  typedef std::uint8_t Bytes __attribute__((vector_size(16)));

  static Float Sqrt(Float x) {
    return Float{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
                 __builtin_sqrtf(x[3])};
  }

  static Float Min(Float a, Float b) { return a < b ? a : b; }
  static Float Max(Float a, Float b) { return a > b ? a : b; }

  static void Stream(float* to, Float x) { std::memcpy(to, &x, sizeof x); }

  static Float LoadHalf(const std::uint16_t* x) {
    return Float{HalfToFloat(x[0]), HalfToFloat(x[1]), HalfToFloat(x[2]),
                 HalfToFloat(x[3])};
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    for (int i = 0; i < kWidth; ++i) to[i] = FloatToHalf(x[i]);
  }

  // StoreInt16 saturates.
  static Ints LoadInt16(const std::int16_t* x) { return Ints{x[0], x[1], x[2], x[3]}; }
  static void StoreInt16(std::int16_t* to, Ints x) {
    for (int i = 0; i < kWidth; ++i) {
      to[i] = static_cast<std::int16_t>(std::clamp(x[i], -32768, 32767));
    }
  }

  // kWidth numbers of 8 bits, which have to be below 256.
  static Words LoadBytes(const std::uint8_t* x) {
    return Words{x[0], x[1], x[2], x[3]};
  }
  static void StoreBytes(std::uint8_t* to, Words x) {
    for (int i = 0; i < kWidth; ++i) to[i] = static_cast<std::uint8_t>(x[i]);
  }

  static Words Widen(Shorts x) { return __builtin_convertvector(x, Words); }
  static Shorts Narrow(Words x) { return __builtin_convertvector(x, Shorts); }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_PORTABLE_H_
