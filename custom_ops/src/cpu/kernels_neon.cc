// Compiled with the flags of this instruction set where the compiler has them.

#include "cpu/kernels.h"

#if defined(__aarch64__)
#include "cpu/kernels_simd.h"
#include "cpu/simd/neon.h"

const keras_mp::Kernels* keras_mp::NeonKernels() { return &kKernels<Neon>; }
#else
const keras_mp::Kernels* keras_mp::NeonKernels() { return nullptr; }
#endif
