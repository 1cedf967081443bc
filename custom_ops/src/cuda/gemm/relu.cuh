// C = max(C, 0) in place, after cuBLASLt. The layout of C is that of keras_mp/gemm.h; only
// its fields in cuda/gemm/problem.h are read.
//
// Run without a GPU, from its PTX: pytest tests/cuda_ptx -k relu

#ifndef KERAS_MP_SRC_CUDA_GEMM_RELU_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_RELU_CUH_

#include "cuda/gemm/problem.h"

namespace keras_mp::cuda {

// x <= 0 ? 0 : x on the bits of FP16, bfloat16 or FP32 numbers: those with the sign bit,
// except NaN, become 0.
template <class Bits>
__global__ void __launch_bounds__(256) ReluKernel(const Problem p, Bits infinity) {
  const Index column = static_cast<Index>(blockIdx.x) * 32 + threadIdx.x;
  if (column >= p.n) return;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  for (Index row = static_cast<Index>(blockIdx.y) * 8 + threadIdx.y; row < p.m;
       row += static_cast<Index>(gridDim.y) * 8) {
    Bits* c = static_cast<Bits*>(p.c) + blockIdx.z * p.stride_c + row * p.ldc + column;
    const Bits x = *c;
    if (x >= kSign && x <= (kSign | infinity)) *c = 0;
  }
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_RELU_CUH_
