// Cuts [outer, channels, inner] into tiles, gives them to the kernel of the instruction
// set, and adds up what it found.

#include "keras_mp/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "channel_tile.h"
#include "kernels.h"
#include "parallel.h"
#include "row_check.h"
#include "rows.h"

namespace keras_mp {
namespace {

// The tiles of x. The numbers of a channel are cut into parts; each part has a tile, or,
// where channels lie side by side, shares one with its neighbours.
class Tiles {
 public:
  Tiles(const ChannelShape& shape, DataType type) : shape_(shape), type_(type) {
    // Two tiles of 16-bit numbers fit into the second cache.
    const std::int64_t numbers_in_a_row = is_run() ? shape.inner : shape.outer;
    numbers_ = std::min(numbers_in_a_row, kNumbers);
    parts_in_a_row_ = CeilDiv(numbers_in_a_row, kNumbers);
    channels_ = is_run() ? 1 : std::min(shape.channels, kChannels);
    channel_groups_ = CeilDiv(shape.channels, channels_);
  }

  std::int64_t parts() const { return parts_in_a_row_ * (is_run() ? shape_.outer : 1); }
  std::int64_t size() const { return parts() * channel_groups_; }
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

  // How many numbers a tile has.
  std::int64_t numbers() const { return numbers_ * channels_; }

 private:
  static constexpr std::int64_t kNumbers = 256;
  static constexpr std::int64_t kChannels = 128;

  bool is_run() const { return shape_.inner != 1; }

  ChannelShape shape_;
  DataType type_;
  std::int64_t numbers_, parts_in_a_row_, channels_, channel_groups_;
};

Status Check(const ChannelShape& shape, DataType type, Isa isa) {
  return CheckRows(std::min(shape.outer, shape.inner), shape.channels, type, isa);
}

constexpr Status kNoMemory = {StatusCode::kOutOfMemory, "no memory for partial sums"};

Status ComputeMoments(const BatchNorm& norm, const Tiles& tiles,
                      const Parallel& parallel, const ChannelKernel& kernel) {
  const std::int64_t channels = norm.shape.channels, parts = tiles.parts();
  Rows means(parts, channels), squares(parts, channels);
  if (!means.ok() || !squares.ok()) return kNoMemory;
  ForPieces(parallel, tiles.size(), tiles.numbers(), [&](std::int64_t i) {
    const auto [part, c, tile] = tiles.At(i, norm.x, nullptr, nullptr);
    kernel.moments(tile, means[part] + c, squares[part] + c);
  });
  const double count = 1.0 * norm.shape.outer * norm.shape.inner;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += 1.0 * means[part][c] * tiles.CountOf(part);
    }
    const double mean = sum / count;
    double square = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const double distance = means[part][c] - mean;
      square += squares[part][c] + distance * distance * tiles.CountOf(part);
    }
    norm.mean[c] = static_cast<float>(mean);
    norm.variance[c] = static_cast<float>(square / count);
  }
  return {};
}

}  // namespace

Status BatchNormCpu(const BatchNorm& norm, const Parallel& parallel, Isa isa) {
  const Status status = Check(norm.shape, norm.type, isa);
  if (!status.ok()) return status;
  const std::int64_t channels = norm.shape.channels;
  if (channels == 0) return {};
  const ChannelKernel& kernel = *KernelsOf(isa)->channels;
  const Tiles tiles(norm.shape, norm.type);
  Rows scale(1, channels);
  if (!scale.ok()) return kNoMemory;
  if (!norm.are_given) {
    const Status status = ComputeMoments(norm, tiles, parallel, kernel);
    if (!status.ok()) return status;
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    scale[0][c] = norm.gamma[c] / std::sqrt(norm.variance[c] + norm.epsilon);
  }
  ForPieces(parallel, tiles.size(), tiles.numbers(), [&](std::int64_t i) {
    const auto [part, c, tile] = tiles.At(i, norm.x, nullptr, norm.y);
    kernel.normalize(tile, {norm.mean + c, scale[0] + c, norm.beta + c});
  });
  return {};
}

Status BatchNormGradientCpu(const BatchNormGradient& gradient, const Parallel& parallel,
                            Isa isa) {
  const Status status = Check(gradient.shape, gradient.type, isa);
  if (!status.ok()) return status;
  const std::int64_t channels = gradient.shape.channels;
  if (channels == 0) return {};
  const ChannelKernel& kernel = *KernelsOf(isa)->channels;
  const Tiles tiles(gradient.shape, gradient.type);
  const std::int64_t parts = tiles.parts();
  Rows sums(parts, channels), products(parts, channels), per_channel(3, channels);
  if (!sums.ok() || !products.ok() || !per_channel.ok()) return kNoMemory;

  ForPieces(parallel, tiles.size(), tiles.numbers(), [&](std::int64_t i) {
    const auto [part, c, tile] = tiles.At(i, gradient.x, gradient.of_y, nullptr);
    kernel.gradient_sums(tile, gradient.mean + c, sums[part] + c, products[part] + c);
  });
  float *scale = per_channel[0], *through_mean = per_channel[1];
  float* through_variance = per_channel[2];
  const double count = 1.0 * gradient.shape.outer * gradient.shape.inner;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += sums[part][c];
      product += products[part][c];
    }
    // Without numbers the variance is NaN, and the sums are 0.
    const double deviation = std::sqrt(1.0 * gradient.variance[c] + gradient.epsilon);
    const double inverse = count > 0 ? 1 / deviation : 0;
    gradient.of_beta[c] = static_cast<float>(sum);
    gradient.of_gamma[c] = static_cast<float>(product * inverse);
    const double slope = gradient.gamma[c] * inverse;
    const double through = gradient.are_given ? 0 : slope / count;
    scale[c] = static_cast<float>(slope);
    through_mean[c] = static_cast<float>(through * sum);
    through_variance[c] = static_cast<float>(through * product * inverse * inverse);
  }
  ForPieces(parallel, tiles.size(), tiles.numbers(), [&](std::int64_t i) {
    const auto [part, c, tile] = tiles.At(i, gradient.x, gradient.of_y, gradient.of_x);
    kernel.gradient(tile, {gradient.mean + c, scale + c, through_mean + c,
                           through_variance + c});
  });
  return {};
}

}  // namespace keras_mp
