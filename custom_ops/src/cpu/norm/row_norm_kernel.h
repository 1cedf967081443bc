// The normalization of one row of a matrix, which each instruction set has.

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_

#include <cstdint>

#include "keras_mp/row_norm_cpu.h"

namespace keras_mp {

// Each function computes row `row` of a matrix [rows, size].
struct RowNormKernel {
  void (*compute)(const RowNorm& norm, std::int64_t row);
  // Adds the terms of this row to grad_gamma and grad_beta, where these are not null.
  void (*compute_gradient)(const RowNormGradient& gradient, std::int64_t row,
                           float* grad_gamma, float* grad_beta);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_
