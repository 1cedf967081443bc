// The CUDA kernels of the softmax of each row and its gradients:
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//   grad_x = round(p * (grad_y - sum(p * grad_y))), where p is y before rounding
//   grad_x = y * (grad_y - sum(y * grad_y)), of an FP32 x
//
// Matrices are [rows, size], packed, in 16 bits; x and its gradient may be FP32. A team of
// threads works on a row (cuda/norm/row.cuh), and computes each exponential twice, which
// takes less than a pass through memory.
//
//   cmake --build build/custom_ops --target norm_cuda_emulated_test &&
//     build/custom_ops/norm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_NORM_SOFTMAX_CUH_
#define KERAS_MP_SRC_CUDA_NORM_SOFTMAX_CUH_

#include "cuda/norm/row.cuh"
#include "keras_mp/softmax.h"

namespace keras_mp::cuda {

// Of the first matrix. Ignores NaN, which makes its row NaN in any case.
template <int kTeam, class Rows>
__device__ __forceinline__ float MaxOf(const Rows& rows) {
  float largest = -Infinity();
  rows.ForEach([&](Index, int count, const typename Rows::Numbers& x) {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i < count) largest = fmaxf(largest, x[0][i]);
    }
  });
  return Team<kTeam>::Max(largest);
}

// Input is the format of x, Format that of y.
template <class Input, class Format, int kTeam, bool kIsHeld>
__global__ void __launch_bounds__(kBlock) SoftmaxKernel(const Softmax a) {
  using Rows = RowsOfTeam<Input, kTeam, kIsHeld, 1>;
  using Numbers = typename Rows::Numbers;
  const Index row = Team<kTeam>::Row();
  if (row >= a.rows) return;
  const Rows rows(row, a.size, a.x);
  const float max = MaxOf<kTeam>(rows);
  float total[1];
  rows.Sum(
      [max](Index, int i, const Numbers& x, float (&sum)[1]) {
        sum[0] += expf(x[0][i] - max);
      },
      total);
  const float inverse = 1 / total[0];
  const auto y = WriteRow<Format>(a.y, row, a.size);
  rows.ForEach([&](Index first, int, const Numbers& x) {
    float result[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) result[i] = expf(x[0][i] - max) * inverse;
    y.Store(first, result);
  });
}

template <class Format, int kTeam, bool kIsHeld>
__global__ void __launch_bounds__(kBlock) SoftmaxGradientKernel(const SoftmaxGradient a) {
  using Rows = RowsOfTeam<Format, kTeam, kIsHeld, 2>;
  using Numbers = typename Rows::Numbers;
  const Index row = Team<kTeam>::Row();
  if (row >= a.rows) return;
  const Rows rows(row, a.size, a.x, a.grad_y);
  const float max = MaxOf<kTeam>(rows);
  float totals[2];
  rows.Sum(
      [max](Index, int i, const Numbers& x, float (&sums)[2]) {
        const float e = expf(x[0][i] - max);
        sums[0] += e;
        sums[1] += e * x[1][i];
      },
      totals);
  const float inverse = 1 / totals[0], mean = totals[1] / totals[0];
  const auto grad_x = WriteRow<Format>(a.grad_x, row, a.size);
  rows.ForEach([&](Index first, int, const Numbers& x) {
    float result[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      result[i] = expf(x[0][i] - max) * inverse * (x[1][i] - mean);
    }
    grad_x.Store(first, result);
  });
}

template <class Format, int kTeam, bool kIsHeld>
__global__ void __launch_bounds__(kBlock)
    FloatSoftmaxGradientKernel(const FloatSoftmaxGradient a) {
  using Rows = RowsOfTeam<Format, kTeam, kIsHeld, 2>;
  using Numbers = typename Rows::Numbers;
  const Index row = Team<kTeam>::Row();
  if (row >= a.rows) return;
  const Rows rows(row, a.size, a.y, a.grad_y);
  float total[1];
  rows.Sum(
      [](Index, int i, const Numbers& x, float (&sum)[1]) { sum[0] += x[0][i] * x[1][i]; },
      total);
  const float mean = total[0];
  const auto grad_x = WriteRow<Float>(a.grad_x, row, a.size);
  rows.ForEach([&](Index first, int, const Numbers& x) {
    float result[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) result[i] = x[0][i] * (x[1][i] - mean);
    grad_x.Store(first, result);
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_SOFTMAX_CUH_
