// Compiled with the flags of this instruction set where the compiler has them.

#include "kernels.h"

#if defined(__AVX512F__)
#include "kernels_impl.h"
#include "simd_avx512.h"

const keras_mp::Kernels* keras_mp::Avx512Kernels() { return &kKernels<Avx512>; }
#else
const keras_mp::Kernels* keras_mp::Avx512Kernels() { return nullptr; }
#endif
