// The epilogue of the product, from FP32 sums to C: round(activation(alpha * sum +
// bias)). ReduceKernel first adds up the parts of a split sum: sum = partial[0] +
// partial[1] + ...
//
// `partial` is [splits][batch][m][n] in FP32, without gaps; C is row-major, with row
// distance ldc and batch distance stride_c; bias is [n]. cuda/gemm/problem.h has all
// arguments.
//
// Build and test without a GPU, thread by thread on the host:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target gemm_cuda_emulated_test &&
//   build/cpp/gemm_cuda_emulated_test
// With a GPU:
//   cmake -S custom_ops -B build/cuda -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=ON &&
//   cmake --build build/cuda --target gemm_cuda_test && build/cuda/gemm_cuda_test

#ifndef KERAS_MP_SRC_CUDA_GEMM_EPILOGUE_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_EPILOGUE_CUH_

#include "cuda/gemm/layout.h"

#ifdef __CUDACC__
#include "cuda/gemm/primitives.cuh"
#endif

namespace keras_mp::cuda {

// Every activation of NaN is NaN.
__device__ __forceinline__ float Activate(float x, ActivationCode activation) {
  switch (activation) {
    case kRelu:
      return x <= 0.0f ? 0.0f : x;
    case kTanh:
      return tanhf(x);
    case kSigmoid:
      return 1.0f / (1.0f + expf(-x));
    case kGelu:  // exact, not approximated by tanh; erfc is accurate also for x << 0
      return 0.5f * x * erfcf(-0.70710678118654752f * x);
    case kNoActivation:
      break;
  }
  return x;
}

template <class T>
__device__ __forceinline__ float FinishElement(const Problem& p, int column, float sum) {
  float x = p.alpha == nullptr ? sum : *p.alpha * sum;
  if (p.bias != nullptr) {
    x += p.float_bias ? static_cast<const float*>(p.bias)[column]
                      : Widen(T{}, static_cast<const Bits16*>(p.bias)[column]);
  }
  return Activate(x, p.activation);
}

// Stores two neighbouring elements of product `z`, or those of them that are inside of C.
template <class T>
__device__ __forceinline__ void StorePair(const Problem& p, int z, int row, int column,
                                          float sum0, float sum1) {
  if (row >= p.m || column >= p.n) return;
  const bool both = column + 1 < p.n;
  const float x0 = FinishElement<T>(p, column, sum0);
  const float x1 = both ? FinishElement<T>(p, column + 1, sum1) : 0.0f;
  const Index at = z * p.stride_c + row * p.ldc + column;
  if (p.float_output) {
    float* c = static_cast<float*>(p.c) + at;
    if (both && p.paired_stores) {
      *reinterpret_cast<float2*>(c) = make_float2(x0, x1);
    } else {
      c[0] = x0;
      if (both) c[1] = x1;
    }
  } else {
    Bits16* c = static_cast<Bits16*>(p.c) + at;
    if (both && p.paired_stores) {
      *reinterpret_cast<ushort2*>(c) = make_ushort2(Round(T{}, x0), Round(T{}, x1));
    } else {
      c[0] = Round(T{}, x0);
      if (both) c[1] = Round(T{}, x1);
    }
  }
}

// Stores 16 rows of the result of a warp, at (row0, column0) of C or of the partial sums.
// They are in shared memory with the pitch of the shape. Neighbouring lanes store
// neighbouring pairs.
template <class T, class Shape>
__device__ __forceinline__ void StoreStrip(const Problem& p, int z, int split, int row0,
                                           int column0, const float* strip, int lane) {
  constexpr int kPairs = Shape::kWarpN / 2;
#pragma unroll 1
  for (int i = lane; i < 16 * kPairs; i += kWarp) {
    const int row = row0 + i / kPairs;
    const int column = column0 + i % kPairs * 2;
    const float* sum = strip + i / kPairs * Shape::kStripPitch + i % kPairs * 2;
    if (p.splits == 1) {
      StorePair<T>(p, z, row, column, sum[0], sum[1]);
    } else if (row < p.m && column < p.n) {
      const Index matrix = static_cast<Index>(p.m) * p.n;
      float* to = p.partial + split * p.partial_stride + z * matrix +
                  static_cast<Index>(row) * p.n + column;
      to[0] = sum[0];
      if (column + 1 < p.n) to[1] = sum[1];
    }
  }
}

// Adds up the parts of split sums in the order of k, so that the result is deterministic,
// and applies the epilogue. Blocks of (32, 8) threads; in the grid x is columns, y rows,
// and z products.
template <class T>
__global__ void __launch_bounds__(256) ReduceKernel(const Problem p) {
  const Index matrix = static_cast<Index>(p.m) * p.n;
  const int z = blockIdx.z;
  const Index column = (static_cast<Index>(blockIdx.x) * 32 + threadIdx.x) * 2;
  if (column >= p.n) return;
  const bool both = column + 1 < p.n;
  for (Index row = static_cast<Index>(blockIdx.y) * 8 + threadIdx.y; row < p.m;
       row += static_cast<Index>(gridDim.y) * 8) {
    const float* part = p.partial + z * matrix + row * p.n + column;
    float sum0 = 0.0f;
    float sum1 = 0.0f;
    for (int split = 0; split < p.splits; ++split, part += p.partial_stride) {
      sum0 += part[0];
      if (both) sum1 += part[1];
    }
    StorePair<T>(p, z, static_cast<int>(row), static_cast<int>(column), sum0, sum1);
  }
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_EPILOGUE_CUH_
