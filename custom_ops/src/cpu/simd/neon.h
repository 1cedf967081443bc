// NEON of aarch64: vectors of 4 numbers, 32 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_NEON_H_
#define KERAS_MP_SRC_CPU_SIMD_NEON_H_

#include <arm_neon.h>

#include <cstdint>

namespace keras_mp {

struct Neon {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 12;
  static constexpr int kTerms = 256;  // of a sum that are packed at a time
  // Products of few rows: how many rows are computed at a time, and up to how many it
  // is worth it, where the rows of B lie in memory one after the other, or its columns.
  static constexpr int kSweptRows = 4;
  static constexpr int kDotRows = 4;
  static constexpr int kFewRowsOfRows = 8, kFewRowsOfColumns = 8;

  typedef float Float __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));

  static Float Sqrt(Float x) { return vsqrtq_f32(x); }

  static Float LoadHalf(const std::uint16_t* x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x)));
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_NEON_H_
