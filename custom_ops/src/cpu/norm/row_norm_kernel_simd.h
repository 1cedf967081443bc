// The normalization of one row, and its gradient, for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h.
//
//   z = (x - mean) * inverse
//   y = round(gamma * z + beta)
//   grad_x = round((grad_z - mean(grad_z) - z * mean(grad_z * z)) * inverse), where
//   grad_z = gamma * grad_y
//
// mean and inverse of each kind are in keras_mp/row_norm_cpu.h. The mean of grad_z is
// subtracted in layer normalization alone; unit length has a sum for the last mean.
// Matrices are [rows, size], packed, in 16 bits; gamma and beta [size] in FP32.
//
//   cmake --build build/custom_ops --target row_norm_cpu_test &&
//     build/custom_ops/row_norm_cpu_test

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_

#include <cmath>
#include <cstdint>

#include "cpu/norm/row_norm_kernel.h"
#include "cpu/norm/row_reduction_simd.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd, class Format>
struct RowNormRow {
  using Row = RowReduction<Simd, Format>;
  using Float = typename Simd::Float;

  // The statistics of a row: z = (x - mean) * inverse.
  struct Scale {
    float mean, inverse;
    double count;  // divisor of the sum of squares: size, or 1 for unit length
    bool is_zero;  // unit length: a row of zeros
    bool is_short;  // unit length: a row divided by epsilon, not by its length
  };

  static Scale ScaleOf(const std::uint16_t* x, std::int64_t size, RowNormKind kind,
                       float epsilon) {
    Scale scale = {0, 0, 1.0 * size, false, false};
    if (kind == RowNormKind::kLayer) {
      const double sum = Row::Sum(size, [&](auto part, int v, std::int64_t i) {
        return part.Load(x + i, v);
      });
      scale.mean = static_cast<float>(sum / scale.count);
    }
    const Float mean = Broadcast<Simd>(scale.mean);
    const double squares = Row::Sum(size, [&](auto part, int v, std::int64_t i) {
      const Float distance = part.Load(x + i, v) - mean;
      return distance * distance;
    });
    double deviation = std::sqrt(squares / scale.count + epsilon);
    if (kind == RowNormKind::kUnitLength) {
      scale.count = 1;
      scale.is_zero = squares == 0;
      deviation = std::sqrt(squares);
      scale.is_short = deviation < epsilon;
      if (scale.is_short) deviation = epsilon;
    }
    scale.inverse = static_cast<float>(1 / deviation);
    return scale;
  }

  static void Compute(const RowNorm& norm, std::int64_t row) {
    const std::int64_t size = norm.size;
    const std::uint16_t* x = Row::At(norm.x, row * size);
    std::uint16_t* y = Row::At(norm.y, row * size);
    const Scale scale = ScaleOf(x, size, norm.kind, norm.epsilon);
    const Float mean = Broadcast<Simd>(scale.mean);
    const Float inverse = Broadcast<Simd>(scale.inverse);
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      Float z = (part.Load(x + i, v) - mean) * inverse;
      if (norm.gamma) z *= part.Load(norm.gamma + i, v);
      if (norm.beta) z += part.Load(norm.beta + i, v);
      part.Store(y + i, v, z);
    });
  }

  static void ComputeGradient(const RowNormGradient& gradient, std::int64_t row,
                              float* grad_gamma, float* grad_beta) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* x = Row::At(gradient.x, row * size);
    const std::uint16_t* grad_y = Row::At(gradient.grad_y, row * size);
    std::uint16_t* grad_x = Row::At(gradient.grad_x, row * size);
    const Scale scale = ScaleOf(x, size, gradient.kind, gradient.epsilon);
    const Float mean = Broadcast<Simd>(scale.mean);
    const Float inverse = Broadcast<Simd>(scale.inverse);
    const auto z_at = [&](auto part, int v, std::int64_t i) {
      return (part.Load(x + i, v) - mean) * inverse;
    };
    const auto grad_z_at = [&](auto part, int v, std::int64_t i) {
      const Float d = part.Load(grad_y + i, v);
      return gradient.gamma ? d * part.Load(gradient.gamma + i, v) : d;
    };
    const auto totals = Row::SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float grad_z = grad_z_at(part, v, i);
      return typename Row::Pair{grad_z, grad_z * z_at(part, v, i)};
    });
    const bool centered = gradient.kind == RowNormKind::kLayer;
    const double mean_grad_z = centered ? totals.first / scale.count : 0;
    const Float mean_term = Broadcast<Simd>(static_cast<float>(mean_grad_z));
    const double mean_grad_z_z = scale.is_short ? 0 : totals.second / scale.count;
    const Float length_term = Broadcast<Simd>(static_cast<float>(mean_grad_z_z));
    const Float factor = Broadcast<Simd>(scale.is_zero ? 0 : scale.inverse);
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float z = z_at(part, v, i);
      const Float grad = grad_z_at(part, v, i) - mean_term - z * length_term;
      part.Store(grad_x + i, v, grad * factor);
      const Float d = part.Load(grad_y + i, v);
      if (grad_gamma) part.Store(grad_gamma + i, v, part.Load(grad_gamma + i, v) + d * z);
      if (grad_beta) part.Store(grad_beta + i, v, part.Load(grad_beta + i, v) + d);
    });
  }
};

// Selects the function for the format of a matrix.
template <class Simd>
struct RowNormOf {
  static void Compute(const RowNorm& norm, std::int64_t row) {
    norm.type == DataType::kHalf ? RowNormRow<Simd, Half<Simd>>::Compute(norm, row)
                                 : RowNormRow<Simd, Bfloat16<Simd>>::Compute(norm, row);
  }
  static void ComputeGradient(const RowNormGradient& gradient, std::int64_t row,
                              float* grad_gamma, float* grad_beta) {
    gradient.type == DataType::kHalf
        ? RowNormRow<Simd, Half<Simd>>::ComputeGradient(gradient, row, grad_gamma,
                                                        grad_beta)
        : RowNormRow<Simd, Bfloat16<Simd>>::ComputeGradient(gradient, row, grad_gamma,
                                                            grad_beta);
  }
};

template <class Simd>
constexpr RowNormKernel kRowNormKernel = {RowNormOf<Simd>::Compute,
                                          RowNormOf<Simd>::ComputeGradient};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_
