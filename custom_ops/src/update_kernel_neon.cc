// Compiled as kernels_neon.cc is, but without contraction.

#include "update_kernel.h"

#if defined(__aarch64__)
#include "simd_neon.h"
#include "update_kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::NeonUpdateKernel() {
  return &kUpdateKernel<Neon>;
}
#else
const keras_mp::UpdateKernel* keras_mp::NeonUpdateKernel() { return nullptr; }
#endif
