// Compiled as cpu/kernels_neon.cc is, but without contraction.

#include "cpu/update/kernel.h"

#if defined(__aarch64__)
#include "cpu/simd/neon.h"
#include "cpu/update/kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::NeonUpdateKernel() {
  return &kUpdateKernel<Neon>;
}
#else
const keras_mp::UpdateKernel* keras_mp::NeonUpdateKernel() { return nullptr; }
#endif
