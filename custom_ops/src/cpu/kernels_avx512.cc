// Compiled with the flags of this instruction set where the compiler has them.

#include "cpu/kernels.h"

#if defined(__AVX512F__)
#include "cpu/kernels_simd.h"
#include "cpu/simd/avx512.h"

const keras_mp::Kernels* keras_mp::Avx512Kernels() { return &kKernels<Avx512>; }
#else
const keras_mp::Kernels* keras_mp::Avx512Kernels() { return nullptr; }
#endif
