// AVX2, FMA and F16C: FP32 vectors of 8 lanes, 16 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_AVX2_H_
#define KERAS_MP_SRC_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace keras_mp {

struct Avx2 {
  static constexpr int kWidth = 8;
  // MR: the register tile has 6 x 2 accumulators, 2 vectors of B and one of A.
  static constexpr int kMicroRows = 6;
  static constexpr int kStepsPerBlock = 256;  // KC: steps along k packed at a time
  static constexpr int kTileColumns = 256;  // NC: columns of a tile of C
  // The skinny GEMM: rows computed at a time, and up to how many rows it is faster than
  // packing, for row-major (sweep) and column-major (dot) B.
  static constexpr int kSweptRows = 2;
  static constexpr int kDotRows = 2;
  static constexpr int kSkinnyRowsRowMajorB = 8, kSkinnyRowsColumnMajorB = 8;

  typedef float Float __attribute__((vector_size(32)));
  typedef std::int32_t Ints __attribute__((vector_size(32)));
  typedef std::uint32_t Words __attribute__((vector_size(32)));
  typedef std::uint16_t Shorts __attribute__((vector_size(16)));
  typedef std::uint8_t Bytes __attribute__((vector_size(32)));

  static Float Sqrt(Float x) { return _mm256_sqrt_ps(x); }

  // a < b ? a : b and a > b ? a : b, which the compiler makes two instructions of.
  static Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }

  // Writes past the caches, to a multiple of 32 bytes.
  static void Stream(float* to, Float x) { _mm256_stream_ps(to, x); }

  static Float LoadHalf(const std::uint16_t* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    const __m128i halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }

  // StoreInt16 saturates.
  static Ints LoadInt16(const std::int16_t* x) {
    return (Ints)_mm256_cvtepi16_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static void StoreInt16(std::int16_t* to, Ints x) {
    const __m256i lanes = _mm256_packs_epi32((__m256i)x, (__m256i)x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), LowerOfBoth(lanes));
  }

  // kWidth numbers of 8 bits, which have to be below 256.
  static Words LoadBytes(const std::uint8_t* x) {
    return (Words)_mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
  }
  static void StoreBytes(std::uint8_t* to, Words x) {
    const __m128i shorts = (__m128i)Narrow(x);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(shorts, shorts));
  }

  // The compiler's conversions of vectors take them apart into halves.
  static Words Widen(Shorts x) { return (Words)_mm256_cvtepu16_epi32((__m128i)x); }
  static Shorts Narrow(Words x) {
    return (Shorts)LowerOfBoth(_mm256_packus_epi32((__m256i)x, (__m256i)x));
  }

 private:
  // The lower half of each half.
  static __m128i LowerOfBoth(__m256i x) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(x, 0b1000));
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AVX2_H_
