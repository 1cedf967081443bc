// AVX-512 with the dot products of bfloat16 pairs of AVX512_BF16.

#ifndef KERAS_MP_SRC_CPU_SIMD_AVX512_BF16_H_
#define KERAS_MP_SRC_CPU_SIMD_AVX512_BF16_H_

#include <immintrin.h>

#include "cpu/simd/avx512.h"

namespace keras_mp {

struct Avx512Bf16 : Avx512 {
  // sum + a.odd * b.odd + a.even * b.even: the odd elements first, each product added
  // with one rounding, and magnitudes below 2^-126 flushed to 0 before and after.
  static Float DotBfloat16(Float sum, Float a, Float b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }

  // The elements of two vectors, rounded to bfloat16, two to a 32-bit word. Magnitudes
  // below 2^-126 are flushed to 0.
  static Float PairsOfBfloat16(Float first, Float second) {
    return (Float)_mm512_cvtne2ps_pbh(second, first);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AVX512_BF16_H_
