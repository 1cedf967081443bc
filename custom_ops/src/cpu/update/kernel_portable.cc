// Compiled as cpu/kernels_portable.cc is, but without contraction.

#include "cpu/simd/portable.h"
#include "cpu/update/kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::PortableUpdateKernel() {
  return &kUpdateKernel<Portable>;
}
