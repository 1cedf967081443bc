// All kernels of one instruction set: included once by each of kernels_*.cc, which is
// compiled for that set.

#ifndef KERAS_MP_SRC_CPU_KERNELS_SIMD_H_
#define KERAS_MP_SRC_CPU_KERNELS_SIMD_H_

#include "cpu/norm/batch_norm_kernel_simd.h"
#include "cpu/gemm/gemm_kernel_simd.h"
#include "cpu/kernels.h"
#include "cpu/pool/average_pool_kernel_simd.h"
#include "cpu/norm/row_norm_kernel_simd.h"

namespace keras_mp {

template <class Simd>
constexpr Kernels kKernels = {&kTileKernel<Simd, Half<Simd>>,
                              &kTileKernel<Simd, Bfloat16<Simd>>,
                              &kChannelKernel<Simd>, &kPoolKernel<Simd>,
                              &kRowKernel<Simd>};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_KERNELS_SIMD_H_
