// Compiled as cpu/kernels_avx2.cc is, but without contraction.

#include "cpu/update/kernel.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/simd/avx2.h"
#include "cpu/update/kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::Avx2UpdateKernel() {
  return &kUpdateKernel<Avx2>;
}
#else
const keras_mp::UpdateKernel* keras_mp::Avx2UpdateKernel() { return nullptr; }
#endif
