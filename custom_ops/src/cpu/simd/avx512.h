// AVX-512F: vectors of 16 numbers, 32 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_AVX512_H_
#define KERAS_MP_SRC_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace keras_mp {

struct Avx512 {
  static constexpr int kWidth = 16;
  // The tile of C in registers: 14 x 2 accumulators, 2 vectors of B; A is broadcast by
  // the multiplication itself.
  static constexpr int kRows = 14;
  static constexpr int kTerms = 384;  // of a sum that are packed at a time
  // Products of few rows: how many rows are computed at a time, and up to how many it
  // is worth it, where the rows of B lie in memory one after the other, or its columns.
  static constexpr int kSweptRows = 4;
  static constexpr int kDotRows = 6;
  static constexpr int kFewRowsOfRows = 8, kFewRowsOfColumns = 48;

  typedef float Float __attribute__((vector_size(64)));
  typedef std::int32_t Ints __attribute__((vector_size(64)));
  typedef std::uint32_t Words __attribute__((vector_size(64)));
  typedef std::uint16_t Shorts __attribute__((vector_size(32)));

  static Float Sqrt(Float x) { return _mm512_maskz_sqrt_ps(0xffff, x); }

  static Float LoadHalf(const std::uint16_t* x) {
    // With a mask: GCC 12 takes the plain intrinsics for uses of uninitialized memory.
    return _mm512_maskz_cvtph_ps(
        0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AVX512_H_
