// The tiling of a tensor [outer, channels, inner] for the kernels of
// cpu/norm/batch_norm_kernel.h.

#ifndef KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_
#define KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cpu/norm/batch_norm_kernel.h"
#include "keras_mp/channel_shape.h"

namespace keras_mp {

// The elements of a channel are cut into parts of at most kElements, whose sums are FP32.
// A tile is one part of one channel where inner != 1 (contiguous), else the same part of
// up to kChannels neighbouring channels (interleaved).
class ChannelTiling {
 public:
  ChannelTiling(const ChannelShape& shape, DataType type) : shape_(shape), type_(type) {
    // Two tiles of 16-bit elements fit into the L2 cache.
    const std::int64_t row = is_contiguous() ? shape.inner : shape.outer;
    elements_ = std::min(row, kElements);
    parts_per_row_ = CeilDiv(row, kElements);
    channels_ =
        is_contiguous() ? 1 : std::clamp<std::int64_t>(shape.channels, 1, kChannels);
    channel_groups_ = CeilDiv(shape.channels, channels_);
  }

  std::int64_t parts() const {
    return parts_per_row_ * (is_contiguous() ? shape_.outer : 1);
  }
  std::int64_t size() const { return parts() * channel_groups_; }
  // The most elements of a tile.
  std::int64_t elements() const { return elements_ * channels_; }

  // The elements of each channel in a part.
  std::int64_t CountOf(std::int64_t part) const {
    const std::int64_t row = is_contiguous() ? shape_.inner : shape_.outer;
    return std::min(elements_, row - part % parts_per_row_ * elements_);
  }

  struct Place {
    std::int64_t part, channel;
    ChannelTile tile;
  };

  Place At(std::int64_t index, const void* x, const void* grad_y, void* to) const {
    Place place;
    place.part = index / channel_groups_;
    place.channel = index % channel_groups_ * channels_;
    const std::int64_t first = place.part % parts_per_row_ * elements_;
    const std::int64_t at =
        is_contiguous()
            ? (place.part / parts_per_row_ * shape_.channels + place.channel) *
                      shape_.inner +
                  first
            : first * shape_.channels + place.channel;
    place.tile.type = type_;
    place.tile.is_contiguous = is_contiguous();
    place.tile.count = CountOf(place.part);
    place.tile.channels = std::min(channels_, shape_.channels - place.channel);
    place.tile.stride = shape_.channels;
    place.tile.x = static_cast<const std::uint16_t*>(x) + at;
    place.tile.grad_y =
        grad_y ? static_cast<const std::uint16_t*>(grad_y) + at : nullptr;
    place.tile.to = to ? static_cast<std::uint16_t*>(to) + at : nullptr;
    return place;
  }

 private:
  static constexpr std::int64_t kElements = 256;
  static constexpr std::int64_t kChannels = 128;

  bool is_contiguous() const { return shape_.inner != 1; }

  ChannelShape shape_;
  DataType type_;
  std::int64_t elements_, parts_per_row_, channels_, channel_groups_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_
