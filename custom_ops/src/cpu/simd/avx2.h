// AVX2, FMA and F16C: vectors of 8 numbers, 16 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_AVX2_H_
#define KERAS_MP_SRC_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace keras_mp {

struct Avx2 {
  static constexpr int kWidth = 8;
  // The tile of C in registers: 6 x 2 accumulators, 2 vectors of B and one of A.
  static constexpr int kRows = 6;
  static constexpr int kTerms = 256;  // of a sum that are packed at a time
  // Products of few rows: how many rows are computed at a time, and up to how many it
  // is worth it, where the rows of B lie in memory one after the other, or its columns.
  static constexpr int kSweptRows = 2;
  static constexpr int kDotRows = 2;
  static constexpr int kFewRowsOfRows = 8, kFewRowsOfColumns = 8;

  typedef float Float __attribute__((vector_size(32)));
  typedef std::int32_t Ints __attribute__((vector_size(32)));
  typedef std::uint32_t Words __attribute__((vector_size(32)));
  typedef std::uint16_t Shorts __attribute__((vector_size(16)));

  static Float Sqrt(Float x) { return _mm256_sqrt_ps(x); }

  static Float LoadHalf(const std::uint16_t* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    const __m128i halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AVX2_H_
