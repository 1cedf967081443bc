// [outer, channels, inner] cut into tiles.

#ifndef KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_
#define KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_

#include <algorithm>
#include <cstdint>

#include "cpu/norm/batch_norm_kernel.h"
#include "keras_mp/channel_shape.h"
#include "common/ceil_div.h"

namespace keras_mp {

// The tiles of x. The numbers of a channel are cut into parts; each part has a tile, or,
// where channels lie side by side, shares one with its neighbours.
class Tiles {
 public:
  Tiles(const ChannelShape& shape, DataType type) : shape_(shape), type_(type) {
    // Two tiles of 16-bit numbers fit into the second cache.
    const std::int64_t numbers_in_a_row = is_run() ? shape.inner : shape.outer;
    numbers_ = std::min(numbers_in_a_row, kNumbers);
    parts_in_a_row_ = CeilDiv(numbers_in_a_row, kNumbers);
    channels_ = is_run() ? 1 : std::clamp<std::int64_t>(shape.channels, 1, kChannels);
    channel_groups_ = CeilDiv(shape.channels, channels_);
  }

  std::int64_t parts() const { return parts_in_a_row_ * (is_run() ? shape_.outer : 1); }
  std::int64_t size() const { return parts() * channel_groups_; }
  // How many numbers a tile has at most.
  std::int64_t numbers() const { return numbers_ * channels_; }

  // How many numbers of each channel a part has.
  std::int64_t CountOf(std::int64_t part) const {
    const std::int64_t row = is_run() ? shape_.inner : shape_.outer;
    return std::min(numbers_, row - part % parts_in_a_row_ * numbers_);
  }

  struct Place {
    std::int64_t part, channel;
    ChannelTile tile;
  };

  Place At(std::int64_t index, const void* x, const void* of_y, void* to) const {
    Place place;
    place.part = index / channel_groups_;
    place.channel = index % channel_groups_ * channels_;
    const std::int64_t first = place.part % parts_in_a_row_ * numbers_;
    const std::int64_t at =
        is_run() ? (place.part / parts_in_a_row_ * shape_.channels + place.channel) *
                           shape_.inner +
                       first
                 : first * shape_.channels + place.channel;
    place.tile.type = type_;
    place.tile.is_run = is_run();
    place.tile.count = CountOf(place.part);
    place.tile.channels = std::min(channels_, shape_.channels - place.channel);
    place.tile.stride = shape_.channels;
    place.tile.x = static_cast<const std::uint16_t*>(x) + at;
    place.tile.of_y =
        of_y ? static_cast<const std::uint16_t*>(of_y) + at : nullptr;
    place.tile.to = to ? static_cast<std::uint16_t*>(to) + at : nullptr;
    return place;
  }

 private:
  static constexpr std::int64_t kNumbers = 256;
  static constexpr std::int64_t kChannels = 128;

  bool is_run() const { return shape_.inner != 1; }

  ChannelShape shape_;
  DataType type_;
  std::int64_t numbers_, parts_in_a_row_, channels_, channel_groups_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_CHANNEL_TILING_H_
