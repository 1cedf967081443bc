// The table of kernels of each instruction set; each entry is declared in its folder. The
// functions are compiled from cpu/kernels_for_isa.cc.in.

#ifndef KERAS_MP_SRC_CPU_KERNELS_H_
#define KERAS_MP_SRC_CPU_KERNELS_H_

#include "cpu/attention/attention_kernel.h"
#include "cpu/conv/depthwise_conv_kernel.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/histogram/exponent_histogram_kernel.h"
#include "cpu/logits/logit_row_kernel.h"
#include "cpu/norm/batch_norm_kernel.h"
#include "cpu/norm/row_norm_kernel.h"
#include "cpu/norm/softmax_kernel.h"
#include "cpu/pool/average_pool_kernel.h"
#include "keras_mp/cpu.h"

namespace keras_mp {

struct Kernels {
  const GemmKernel* half_gemm;
  const GemmKernel* bfloat16_gemm;
  const GemmKernel* float_gemm;
  const BatchNormKernel* batch_norm;  // and the sum along one dimension
  const RowNormKernel* row_norm;
  const SoftmaxKernel* softmax;
  const AveragePoolKernel* average_pool;
  const DepthwiseConvKernel* depthwise_conv;
  const ExponentHistogramKernel* exponent_histogram;
  const AttentionKernel* attention;
  const LogitRowKernel* logit_row;

  const GemmKernel* GemmOf(DataType input) const {
    if (input == DataType::kFloat) return float_gemm;
    return input == DataType::kHalf ? half_gemm : bfloat16_gemm;
  }
};

// Null where the library was built without the instruction set.
const Kernels* PortableKernels();
const Kernels* NeonKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512Kernels();
const GemmKernel* Avx512Bf16Bfloat16Gemm();
const AttentionKernel* Avx512Bf16Attention();
const GemmKernel* AmxBf16Bfloat16Gemm();
const GemmKernel* AmxBf16HalfGemm();
const AttentionKernel* AmxBf16Attention();
const GemmKernel* AmxFp16Bfloat16Gemm();
const GemmKernel* AmxFp16HalfGemm();

const Kernels* KernelsOf(Isa isa);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_KERNELS_H_
