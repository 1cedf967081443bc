// What each instruction set provides for the rows of a matrix.

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_

#include <cstdint>

#include "keras_mp/row_norm_cpu.h"
#include "keras_mp/softmax_cpu.h"

namespace keras_mp {

// Each computes one row.
struct RowKernel {
  void (*softmax)(const Softmax& softmax, std::int64_t row);
  void (*softmax_gradient)(const SoftmaxGradient& gradient, std::int64_t row);
  void (*norm)(const RowNorm& norm, std::int64_t row);
  // Adds what this row gives to of_gamma and of_beta, where these are not null.
  void (*norm_gradient)(const RowNormGradient& gradient, std::int64_t row,
                        float* of_gamma, float* of_beta);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_H_
