// Compiled as kernels_portable.cc is, but without contraction.

#include "simd_portable.h"
#include "update_kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::PortableUpdateKernel() {
  return &kUpdateKernel<Portable>;
}
