// Cuts [outer, channels, inner] into tiles, gives them to the kernel of the instruction
// set, and adds up what it found.

#include "keras_mp/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/norm/partial_sums.h"
#include "cpu/norm/channel_tiling.h"

namespace keras_mp {
namespace {

Status Check(const ChannelShape& shape, DataType type, Isa isa) {
  return CheckRows(std::min(shape.outer, shape.inner), shape.channels, type, isa);
}

// Without numbers, no outer and no inner ones.
ChannelShape Simplify(const ChannelShape& shape) {
  if (HasNone({shape.outer, shape.inner})) return {0, shape.channels, 0};
  return shape;
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

Status BatchNormCpu(const BatchNorm& given, const Parallel& parallel, Isa isa) {
  const Status status = Check(given.shape, given.type, isa);
  if (!status.ok()) return status;
  BatchNorm norm = given;
  norm.shape = Simplify(given.shape);
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

Status BatchNormGradientCpu(const BatchNormGradient& given, const Parallel& parallel,
                            Isa isa) {
  const Status status = Check(given.shape, given.type, isa);
  if (!status.ok()) return status;
  BatchNormGradient gradient = given;
  gradient.shape = Simplify(given.shape);
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
