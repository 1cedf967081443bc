// A part of [outer, channels, inner] as the kernels of the instruction sets see it, and
// what each provides for it.

#ifndef KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_
#define KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// `count` numbers of each of `channels` channels. Those of one channel lie `stride`
// apart and the channels side by side; or, where `is_run`, there is one channel and its
// numbers lie side by side.
struct ChannelTile {
  DataType type;
  bool is_run;
  std::int64_t count;
  std::int64_t channels;
  std::int64_t stride;
  const std::uint16_t* x;
  const std::uint16_t* of_y;  // for the gradient
  std::uint16_t* to;
};

// The numbers of each channel that a result is made with.
struct Affine {
  const float* mean;
  const float* scale;
  const float* offset;
};

struct AffineGradient {
  const float* mean;
  const float* scale;
  const float* through_mean;
  const float* through_variance;
};

struct ChannelKernel {
  // sum(x)
  void (*sums)(const ChannelTile& tile, float* sums);
  // Mean of the tile, and the sum of the squared distances from it.
  void (*moments)(const ChannelTile& tile, float* mean, float* squares);
  // to = round((x - mean) * scale + offset)
  void (*normalize)(const ChannelTile& tile, const Affine& affine);
  // sum(of_y), and sum(of_y * (x - mean))
  void (*gradient_sums)(const ChannelTile& tile, const float* mean, float* sums,
                        float* products);
  // to = round(of_y * scale - (through_mean + (x - mean) * through_variance))
  void (*gradient)(const ChannelTile& tile, const AffineGradient& affine);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_H_
