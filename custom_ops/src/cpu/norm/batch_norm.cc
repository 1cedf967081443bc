// The driver of batch normalization on a CPU: cuts x into tiles, runs the kernel of the
// instruction set (cpu/norm/batch_norm_kernel_simd.h) on each, in parallel, and sums the
// partial sums in double.
//
//   y = round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
//
// x and y are [outer, channels, inner], packed; all else [channels].
//
//   cmake --build build/custom_ops --target batch_norm_cpu_test &&
//     build/custom_ops/batch_norm_cpu_test

#include "keras_mp/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "cpu/kernels.h"
#include "cpu/norm/channel_tiling.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/partial_sums.h"

namespace keras_mp {
namespace {

Status Check(const ChannelShape& shape, DataType type, Isa isa) {
  return CheckRows(std::min(shape.outer, shape.inner), shape.channels, type, isa);
}

// The shape of a tensor without elements has outer = inner = 0.
ChannelShape Simplify(const ChannelShape& shape) {
  if (IsEmpty({shape.outer, shape.inner})) return {0, shape.channels, 0};
  return shape;
}

constexpr Status kNoMemory = {StatusCode::kOutOfMemory, "no memory for partial sums"};

Status ComputeMoments(const BatchNorm& norm, const ChannelTiling& tiles,
                      const Parallel& parallel, const BatchNormKernel& kernel) {
  const std::int64_t channels = norm.shape.channels, parts = tiles.parts();
  PartialSums means(parts, channels), squares(parts, channels);
  if (!means.ok() || !squares.ok()) return kNoMemory;
  ParallelFor(parallel, tiles.size(), tiles.elements(), [&](std::int64_t i) {
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
  const BatchNormKernel& kernel = *KernelsOf(isa)->batch_norm;
  const ChannelTiling tiles(norm.shape, norm.type);
  PartialSums scale(1, channels);
  if (!scale.ok()) return kNoMemory;
  if (!norm.inference) {
    const Status status = ComputeMoments(norm, tiles, parallel, kernel);
    if (!status.ok()) return status;
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    scale[0][c] = norm.gamma[c] / std::sqrt(norm.variance[c] + norm.epsilon);
  }
  ParallelFor(parallel, tiles.size(), tiles.elements(), [&](std::int64_t i) {
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
  const BatchNormKernel& kernel = *KernelsOf(isa)->batch_norm;
  const ChannelTiling tiles(gradient.shape, gradient.type);
  const std::int64_t parts = tiles.parts();
  PartialSums sums(parts, channels), products(parts, channels), per_channel(3, channels);
  if (!sums.ok() || !products.ok() || !per_channel.ok()) return kNoMemory;

  ParallelFor(parallel, tiles.size(), tiles.elements(), [&](std::int64_t i) {
    const auto [part, c, tile] = tiles.At(i, gradient.x, gradient.grad_y, nullptr);
    kernel.gradient_sums(tile, gradient.mean + c, sums[part] + c, products[part] + c);
  });
  float *scale = per_channel[0], *mean_term = per_channel[1];
  float* variance_term = per_channel[2];
  const double count = 1.0 * gradient.shape.outer * gradient.shape.inner;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += sums[part][c];
      product += products[part][c];
    }
    // Without elements the variance is NaN, and the sums are 0.
    const double deviation = std::sqrt(1.0 * gradient.variance[c] + gradient.epsilon);
    const double inverse = count > 0 ? 1 / deviation : 0;
    gradient.grad_beta[c] = static_cast<float>(sum);
    gradient.grad_gamma[c] = static_cast<float>(product * inverse);
    const double gain = gradient.gamma[c] * inverse;
    const double term = gradient.inference ? 0 : gain / count;
    scale[c] = static_cast<float>(gain);
    mean_term[c] = static_cast<float>(term * sum);
    variance_term[c] = static_cast<float>(term * product * inverse * inverse);
  }
  ParallelFor(parallel, tiles.size(), tiles.elements(), [&](std::int64_t i) {
    const auto [part, c, tile] =
        tiles.At(i, gradient.x, gradient.grad_y, gradient.grad_x);
    kernel.gradient(tile, {gradient.mean + c, scale + c, mean_term + c,
                           variance_term + c});
  });
  return {};
}

}  // namespace keras_mp
