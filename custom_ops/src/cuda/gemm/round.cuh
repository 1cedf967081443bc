// to = round(from): an FP32 matrix B in 16 bits, to nearest even, before the product.
// `from` and `to` are contiguous arrays of `count` elements: a batch of matrices, with
// the elements between their rows.
//
// Build and test without a GPU, thread by thread on the host:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target gemm_cuda_emulated_test &&
//   build/cpp/gemm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_GEMM_ROUND_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_ROUND_CUH_

#include "cuda/common/types.h"

#ifdef __CUDACC__
#include "cuda/common/primitives.cuh"
#endif

namespace keras_mp::cuda {

constexpr int kRoundThreads = 256;

// Any grid in x computes all elements.
template <class T>
__global__ void __launch_bounds__(kRoundThreads)
    RoundKernel(const float* from, Bits16* to, Index count) {
  const Index step = static_cast<Index>(gridDim.x) * kRoundThreads;
  const Index first = static_cast<Index>(blockIdx.x) * kRoundThreads + threadIdx.x;
  for (Index i = first; i < count; i += step) to[i] = Round(T{}, from[i]);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_ROUND_CUH_
