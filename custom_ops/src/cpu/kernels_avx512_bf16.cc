// Compiled with the flags of this instruction set where the compiler has them.

#include "cpu/kernels.h"

#if defined(__AVX512BF16__)
#include "cpu/kernels_simd.h"
#include "cpu/simd/avx512_bf16.h"

// What makes no products gains nothing from this set.
const keras_mp::Kernels* keras_mp::Avx512Bf16Kernels() {
  static const Kernels kernels = [] {
    Kernels same = *Avx512Kernels();
    same.bfloat16_gemm = &kTileKernel<Avx512Bf16, Bfloat16<Avx512Bf16>>;
    return same;
  }();
  return &kernels;
}
#else
const keras_mp::Kernels* keras_mp::Avx512Bf16Kernels() { return nullptr; }
#endif
