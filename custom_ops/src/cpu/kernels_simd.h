// All kernels of one instruction set, as a template; see cpu/gemm/gemm_kernel_simd.h.

#ifndef KERAS_MP_SRC_CPU_KERNELS_SIMD_H_
#define KERAS_MP_SRC_CPU_KERNELS_SIMD_H_

#include "cpu/attention/attention_kernel_simd.h"
#include "cpu/conv/depthwise_conv_kernel_simd.h"
#include "cpu/gemm/gemm_kernel_simd.h"
#include "cpu/histogram/exponent_histogram_kernel_simd.h"
#include "cpu/kernels.h"
#include "cpu/logits/logit_row_kernel_simd.h"
#include "cpu/norm/batch_norm_kernel_simd.h"
#include "cpu/norm/row_norm_kernel_simd.h"
#include "cpu/norm/softmax_kernel_simd.h"
#include "cpu/pool/average_pool_kernel_simd.h"

namespace keras_mp {

template <class Simd>
constexpr Kernels kKernels = {
    &kHalfGemm<Simd>,        &kBfloat16Gemm<Simd>,  &kFloatGemm<Simd>,
    &kBatchNormKernel<Simd>, &kRowNormKernel<Simd>, &kSoftmaxKernel<Simd>,
    &kAveragePoolKernel<Simd>, &kDepthwiseConvKernel<Simd>,
    &kExponentHistogramKernel<Simd>, &kAttention<Simd>, &kLogitRowKernel<Simd>,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_KERNELS_SIMD_H_
