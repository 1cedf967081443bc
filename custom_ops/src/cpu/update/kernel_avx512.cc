// Compiled as cpu/kernels_avx512.cc is, but without contraction.

#include "cpu/update/kernel.h"

#if defined(__AVX512F__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/simd/avx512.h"
#include "cpu/update/kernel_impl.h"

const keras_mp::UpdateKernel* keras_mp::Avx512UpdateKernel() {
  return &kUpdateKernel<Avx512>;
}
#else
const keras_mp::UpdateKernel* keras_mp::Avx512UpdateKernel() { return nullptr; }
#endif
