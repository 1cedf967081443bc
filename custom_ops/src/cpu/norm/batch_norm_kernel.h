// The interface between the drivers (batch_norm.cc, sum.cc), which cut the tensor
// [outer, channels, inner] into tiles, and the reductions and elementwise passes over one
// tile that each instruction set has.

#ifndef KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_
#define KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// `count` elements of each of `channels` channels. Where `is_contiguous`, there is one
// channel and its elements are contiguous; else the channels are interleaved, and the
// elements of one channel are `stride` apart.
struct ChannelTile {
  DataType type;
  bool is_contiguous;
  std::int64_t count;
  std::int64_t channels;
  std::int64_t stride;
  const std::uint16_t* x;
  const std::uint16_t* grad_y;  // of the gradient kernels
  std::uint16_t* to;
};

// The coefficients of each channel, [channels] each.
struct Affine {
  const float* mean;
  const float* scale;
  const float* offset;
};

struct AffineGradient {
  const float* mean;
  const float* scale;
  const float* mean_term;
  const float* variance_term;
};

struct BatchNormKernel {
  // sum(x)
  void (*sums)(const ChannelTile& tile, float* sums);
  // mean(x) of the tile, and sum((x - mean)^2)
  void (*moments)(const ChannelTile& tile, float* mean, float* squares);
  // to = round((x - mean) * scale + offset)
  void (*normalize)(const ChannelTile& tile, const Affine& affine);
  // sum(grad_y), and sum(grad_y * (x - mean))
  void (*gradient_sums)(const ChannelTile& tile, const float* mean, float* sums,
                        float* products);
  // to = round(grad_y * scale - (mean_term + (x - mean) * variance_term))
  void (*gradient)(const ChannelTile& tile, const AffineGradient& affine);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_
