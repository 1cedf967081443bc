// The CUDA kernels of row normalization (layer, root mean square, unit length) and its
// gradient for x:
//
//   z = (x - mean) * inverse
//   y = round(gamma * z + beta)
//   grad_x = round((grad_z - mean(grad_z) - z * mean(grad_z * z)) * inverse), where
//   grad_z = gamma * grad_y
//
// mean and inverse of each kind are in keras_mp/row_norm.h. The mean of grad_z is
// subtracted in layer normalization alone; unit length has a sum for the last mean.
// Matrices are [rows, size], packed, in 16 bits; gamma and beta [size] in FP32. A team of
// threads works on a row (cuda/norm/row.cuh). The gradients of gamma and beta are sums
// over the rows (cuda/norm/channel_sums.cuh), for which the second kernel leaves mean and
// inverse of each row.
//
//   cmake --build build/custom_ops --target norm_cuda_emulated_test &&
//     build/custom_ops/norm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_NORM_ROW_NORM_CUH_
#define KERAS_MP_SRC_CUDA_NORM_ROW_NORM_CUH_

#include "cuda/norm/row.cuh"
#include "keras_mp/row_norm.h"

namespace keras_mp::cuda {

// The statistics of a row: z = (x - mean) * inverse.
struct RowScale {
  float mean, inverse;
  float count;    // divisor of sums: the size, or 1 for unit length
  bool is_zero;   // unit length: a row of zeros
  bool is_short;  // unit length: a row divided by epsilon, not by its length
};

template <class Rows>
__device__ __forceinline__ RowScale ScaleOf(const Rows& rows, Index size,
                                            RowNormKind kind, float epsilon) {
  using Numbers = typename Rows::Numbers;
  RowScale scale = {0, 0, static_cast<float>(size), false, false};
  float total[1];
  if (kind == RowNormKind::kLayer) {
    rows.Sum([](Index, int i, const Numbers& x, float (&sum)[1]) { sum[0] += x[0][i]; },
             total);
    scale.mean = total[0] / scale.count;
  }
  const float mean = scale.mean;
  rows.Sum(
      [mean](Index, int i, const Numbers& x, float (&sum)[1]) {
        const float distance = x[0][i] - mean;
        sum[0] += distance * distance;
      },
      total);
  const float squares = total[0];
  float deviation = sqrtf(squares / scale.count + epsilon);
  if (kind == RowNormKind::kUnitLength) {
    scale.count = 1;
    scale.is_zero = squares == 0;
    deviation = sqrtf(squares);
    scale.is_short = deviation < epsilon;
    if (scale.is_short) deviation = epsilon;
  }
  scale.inverse = 1 / deviation;
  return scale;
}

// Eight of the numbers for each column; `missing` where there are none.
__device__ __forceinline__ void ReadColumns(const float* numbers, Index first, Index size,
                                            float missing, float (&to)[kEight]) {
#pragma unroll
  for (int i = 0; i < kEight; ++i) to[i] = missing;
  if (numbers != nullptr) ReadRow<Float>(numbers, 0, size).Load(first).WidenTo(to);
}

template <class Format, int kTeam, bool kIsHeld>
__global__ void __launch_bounds__(kBlock) RowNormKernel(const RowNorm a) {
  using Rows = RowsOfTeam<Format, kTeam, kIsHeld, 1>;
  const Index row = Team<kTeam>::Row();
  if (row >= a.rows) return;
  const Rows rows(row, a.size, a.x);
  const RowScale scale = ScaleOf(rows, a.size, a.kind, a.epsilon);
  const auto y = WriteRow<Format>(a.y, row, a.size);
  rows.ForEach([&](Index first, int, const typename Rows::Numbers& x) {
    float gamma[kEight], beta[kEight], result[kEight];
    ReadColumns(a.gamma, first, a.size, 1, gamma);
    ReadColumns(a.beta, first, a.size, 0, beta);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      result[i] = gamma[i] * ((x[0][i] - scale.mean) * scale.inverse) + beta[i];
    }
    y.Store(first, result);
  });
}

struct RowNormGradientArguments {
  RowNormGradient gradient;
  float* scales;  // [rows, 2], mean and inverse; not written where null
};

template <class Format, int kTeam, bool kIsHeld>
__global__ void __launch_bounds__(kBlock)
    RowNormGradientKernel(const RowNormGradientArguments arguments) {
  using Rows = RowsOfTeam<Format, kTeam, kIsHeld, 2>;
  using Numbers = typename Rows::Numbers;
  const RowNormGradient& a = arguments.gradient;
  const Index row = Team<kTeam>::Row();
  if (row >= a.rows) return;
  const Rows rows(row, a.size, a.x, a.grad_y);
  const RowScale scale = ScaleOf(rows, a.size, a.kind, a.epsilon);
  if (arguments.scales != nullptr && Team<kTeam>::Rank() == 0) {
    arguments.scales[2 * row] = scale.mean;
    arguments.scales[2 * row + 1] = scale.inverse;
  }
  const auto z_of = [&](float x) { return (x - scale.mean) * scale.inverse; };
  float totals[2];
  rows.Sum(
      [&](Index first, int i, const Numbers& x, float (&sums)[2]) {
        const float grad_z =
            a.gamma != nullptr ? x[1][i] * a.gamma[first + i] : x[1][i];
        sums[0] += grad_z;
        sums[1] += grad_z * z_of(x[0][i]);
      },
      totals);
  const bool is_centered = a.kind == RowNormKind::kLayer;
  const float mean_grad_z = is_centered ? totals[0] / scale.count : 0;
  const float mean_grad_z_z = scale.is_short ? 0 : totals[1] / scale.count;
  const float factor = scale.is_zero ? 0 : scale.inverse;
  const auto grad_x = WriteRow<Format>(a.grad_x, row, a.size);
  rows.ForEach([&](Index first, int, const Numbers& x) {
    float gamma[kEight], result[kEight];
    ReadColumns(a.gamma, first, a.size, 1, gamma);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float z = z_of(x[0][i]);
      result[i] = (gamma[i] * x[1][i] - mean_grad_z - z * mean_grad_z_z) * factor;
    }
    grad_x.Store(first, result);
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_ROW_NORM_CUH_
