// The argument of the CUDA kernels of the product: a batch of products, with all
// decisions of the host. Compiles with nvcc, with NVRTC (which has no host headers) and
// as plain C++.

#ifndef KERAS_MP_SRC_CUDA_GEMM_PROBLEM_H_
#define KERAS_MP_SRC_CUDA_GEMM_PROBLEM_H_

#include "cuda/common/types.h"

namespace keras_mp::cuda {

// The values of Activation in keras_mp/gemm.h.
enum ActivationCode { kNoActivation, kRelu, kTanh, kSigmoid, kGelu };

struct Problem {
  const Bits16* a;
  const Bits16* b;
  void* c;
  const void* bias;    // null: none
  const float* alpha;  // null: 1

  // Where splits > 1, blocks with y = i of the grid write their part of the sum to
  // partial[i][batch][m][n] and nothing to c.
  float* partial;
  Index partial_stride;  // from one split to the next: batch * m * n

  Index lda, ldb, ldc;
  Index stride_a, stride_b, stride_c;
  int m, n, k;

  int splits;
  int k_per_split;  // a multiple of every tile's kK

  // Largest of 16, 8, 4 and 2 bytes at a multiple of which every row of the matrix begins
  // and ends.
  int align_a, align_b;
  bool paired_stores;  // whether pairs of elements of C from even columns are aligned

  ActivationCode activation;
  bool float_output;  // whether C is FP32; else it has the type of A and B
  bool float_bias;    // likewise the bias
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_PROBLEM_H_
