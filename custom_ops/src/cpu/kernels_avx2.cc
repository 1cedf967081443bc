// Compiled with the flags of this instruction set where the compiler has them.

#include "cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/kernels_simd.h"
#include "cpu/simd/avx2.h"

const keras_mp::Kernels* keras_mp::Avx2Kernels() { return &kKernels<Avx2>; }
#else
const keras_mp::Kernels* keras_mp::Avx2Kernels() { return nullptr; }
#endif
