// The softmax of one row of a matrix, which each instruction set has.

#ifndef KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_H_
#define KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_H_

#include <cstdint>

#include "keras_mp/softmax_cpu.h"

namespace keras_mp {

// Each function computes row `row` of a matrix [rows, size].
struct SoftmaxKernel {
  void (*compute)(const Softmax& softmax, std::int64_t row);
  void (*compute_gradient)(const SoftmaxGradient& gradient, std::int64_t row);
  void (*compute_float_gradient)(const FloatSoftmaxGradient& gradient,
                                 std::int64_t row);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_H_
