// Compiled with the flags of this instruction set where the compiler has them.

#include "kernels.h"

#if defined(__aarch64__)
#include "kernels_impl.h"
#include "simd_neon.h"

const keras_mp::Kernels* keras_mp::NeonKernels() { return &kKernels<Neon>; }
#else
const keras_mp::Kernels* keras_mp::NeonKernels() { return nullptr; }
#endif
