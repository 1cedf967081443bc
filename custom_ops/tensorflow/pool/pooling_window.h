// The windows of one pooled dimension.

#ifndef KERAS_MP_TENSORFLOW_POOL_POOLING_WINDOW_H_
#define KERAS_MP_TENSORFLOW_POOL_POOLING_WINDOW_H_

#include <cstdint>

#include "keras_mp/average_pool_cpu.h"
#include "tensorflow/core/lib/math/math_util.h"

namespace keras_mp {

// `is_same` is the padding "same", otherwise "valid".
inline PooledDimension Pooled(std::int64_t size, std::int64_t window,
                              std::int64_t stride, bool is_same) {
  PooledDimension one;
  one.size = size;
  one.window = window;
  one.stride = stride;
  if (is_same) {
    one.pooled = tensorflow::MathUtil::CeilOfRatio(size, stride);
    const std::int64_t outside = (one.pooled - 1) * stride + window - size;
    one.before = outside > 0 ? outside / 2 : 0;
  } else {
    one.pooled = size < window ? 0 : (size - window) / stride + 1;
  }
  return one;
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_POOL_POOLING_WINDOW_H_
