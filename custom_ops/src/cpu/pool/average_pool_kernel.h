// What each instruction set provides for a pooled position.

#ifndef KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_
#define KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// A box of positions of [.., .., .., channels], each with its weight.
struct Box {
  std::int64_t first[3], count[3];
  std::int64_t distance[3];  // from one position to the next, in numbers
  // Of each dimension, this far apart: a position has the product of three.
  const float* weights[3];
  std::int64_t weight_step;
  float scale;  // of the sum
};

struct PoolKernel {
  // to = round(scale * sum over the box of weight * from), for all channels
  void (*weighted_sum)(DataType type, const void* from, const Box& box,
                       std::int64_t channels, void* to, std::int64_t at);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_H_
