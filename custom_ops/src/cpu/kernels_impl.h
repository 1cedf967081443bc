// All kernels of one instruction set: included once by each of kernels_*.cc, which is
// compiled for that set.

#ifndef KERAS_MP_SRC_CPU_KERNELS_IMPL_H_
#define KERAS_MP_SRC_CPU_KERNELS_IMPL_H_

#include "cpu/norm/channel_tile_impl.h"
#include "cpu/gemm/tile_impl.h"
#include "cpu/kernels.h"
#include "cpu/pool/pool_kernel_impl.h"
#include "cpu/norm/row_kernel_impl.h"

namespace keras_mp {

template <class Simd>
constexpr Kernels kKernels = {&kTileKernel<Simd, Half<Simd>>,
                              &kTileKernel<Simd, Bfloat16<Simd>>,
                              &kChannelKernel<Simd>, &kPoolKernel<Simd>,
                              &kRowKernel<Simd>};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_KERNELS_IMPL_H_
