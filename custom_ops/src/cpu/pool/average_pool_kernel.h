// The weighted sum over one window, which each instruction set has.

#ifndef KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_
#define KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// A window of a tensor [a, b, c, channels], and the weights of its positions.
struct PoolWindow {
  std::int64_t first[3], count[3];
  std::int64_t stride[3];  // from one position to the next, in elements
  // Of each dimension, weight_step apart: a position has the product of its three.
  const float* weights[3];
  std::int64_t weight_step;
  float scale;  // that multiplies the sum
};

struct AveragePoolKernel {
  // to = round(scale * sum over the window of weight * from), for all channels
  void (*weighted_sum)(DataType type, const void* from, const PoolWindow& window,
                       std::int64_t channels, void* to, std::int64_t at);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_
