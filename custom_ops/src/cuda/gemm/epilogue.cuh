// From the FP32 sum to C: alpha, bias, activation, one rounding.

#ifndef KERAS_MP_SRC_CUDA_GEMM_EPILOGUE_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_EPILOGUE_CUH_

#include "cuda/gemm/layout.h"

#ifdef __CUDACC__
#include "cuda/gemm/primitives.cuh"
#endif

namespace keras_mp::cuda {

// NaN stays NaN.
__device__ __forceinline__ float Activate(float x, ActivationCode activation) {
  switch (activation) {
    case kRelu:
      return x <= 0.0f ? 0.0f : x;
    case kTanh:
      return tanhf(x);
    case kSigmoid:
      return 1.0f / (1.0f + expf(-x));
    case kGelu:  // the exact one; erfc keeps its digits where x is far below zero
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

// Writes one or two neighbouring elements of product `z`, those that lie in C.
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

// Writes 16 rows of a warp's result, from (row0, column0) on, that lie in shared memory
// with the shape's pitch: neighbouring lanes write neighbouring pairs.
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

// Sums the parts of a product in the order of k, always the same one, and finishes it.
// Block (32, 8); the grid walks columns in x, rows in y, products in z.
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
