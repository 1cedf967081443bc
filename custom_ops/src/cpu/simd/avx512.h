// AVX-512F: FP32 vectors of 16 lanes, 32 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_AVX512_H_
#define KERAS_MP_SRC_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace keras_mp {

struct Avx512 {
  static constexpr int kWidth = 16;
  // MR: the register tile has 14 x 2 accumulators and 2 vectors of B; A is an embedded
  // broadcast of the multiply-add.
  static constexpr int kMicroRows = 14;
  static constexpr int kStepsPerBlock = 384;  // KC: steps along k packed at a time
  static constexpr int kTileColumns = 256;  // NC: columns of a tile of C
  // The skinny GEMM: rows computed at a time, and up to how many rows it is faster than
  // packing, for row-major (sweep) and column-major (dot) B.
  static constexpr int kSweptRows = 4;
  static constexpr int kDotRows = 6;
  static constexpr int kSkinnyRowsRowMajorB = 16, kSkinnyRowsColumnMajorB = 48;

  typedef float Float __attribute__((vector_size(64)));
  typedef std::int32_t Ints __attribute__((vector_size(64)));
  typedef std::uint32_t Words __attribute__((vector_size(64)));
  typedef std::uint16_t Shorts __attribute__((vector_size(32)));
  // AVX-512F alone computes with no vectors of 64 bytes.
  typedef std::uint8_t Bytes __attribute__((vector_size(32)));

  static Float Sqrt(Float x) { return _mm512_maskz_sqrt_ps(0xffff, x); }

  // a < b ? a : b and a > b ? a : b, which the compiler makes two instructions of.
  static Float Min(Float a, Float b) { return _mm512_maskz_min_ps(0xffff, a, b); }
  static Float Max(Float a, Float b) { return _mm512_maskz_max_ps(0xffff, a, b); }

  // Writes past the caches, to a multiple of 64 bytes.
  static void Stream(float* to, Float x) { _mm512_stream_ps(to, x); }

  static Float LoadHalf(const std::uint16_t* x) {
    // Masked, because GCC 12 warns of uninitialized memory in the plain intrinsics.
    return _mm512_maskz_cvtph_ps(
        0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }

  // StoreInt16 saturates.
  static Ints LoadInt16(const std::int16_t* x) {
    return (Ints)_mm512_maskz_cvtepi16_epi32(
        0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static void StoreInt16(std::int16_t* to, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_maskz_cvtsepi32_epi16(0xffff, (__m512i)x));
  }

  // kWidth numbers of 8 bits, which have to be below 256.
  static Words LoadBytes(const std::uint8_t* x) {
    return (Words)_mm512_maskz_cvtepu8_epi32(
        0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static void StoreBytes(std::uint8_t* to, Words x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x));
  }

  // The compiler's conversions of vectors take them apart into halves.
  static Words Widen(Shorts x) {
    return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
  }
  static Shorts Narrow(Words x) {
    return (Shorts)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)x);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AVX512_H_
