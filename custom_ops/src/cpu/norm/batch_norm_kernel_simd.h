// Batch normalization of one tile of channels, and its reductions, for one instruction
// set: a template, as cpu/gemm/gemm_kernel_simd.h.
//
//   y = round((x - mean) * scale + offset)
//   grad_x = round(grad_y * scale - (mean_term + (x - mean) * variance_term))
//
// A tile is a part of x [outer, channels, inner]: channels that are interleaved, or one
// that is contiguous (cpu/norm/batch_norm_kernel.h). Elements are 16-bit, sums FP32.
//
//   cmake --build build/custom_ops --target batch_norm_cpu_test &&
//     build/custom_ops/batch_norm_cpu_test

#ifndef KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_

#include <cstdint>

#include "cpu/norm/batch_norm_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

// Interleaved channels: the lanes of a vector are neighbouring channels.
template <class Simd, class Format>
struct InterleavedChannels {
  using Float = typename Simd::Float;
  // With vectors of 8 lanes, 4 vectors of 16-bit elements are a cache line.
  static constexpr int kVectors = 4;

  template <class Body>
  static void ForChannels(const ChannelTile& tile, const Body& body) {
    ForCoveringVectors<Simd, Format, kVectors>(tile.channels, body);
  }

  static void Sums(const ChannelTile& tile, float* sums) {
    ForChannels(tile, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kParts] = {};
      for (std::int64_t i = 0; i < tile.count; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          sum[v] += part.Load(tile.x + i * tile.stride + c, v);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) part.Store(sums + c, v, sum[v]);
    });
  }

  static void Moments(const ChannelTile& tile, float* mean, float* squares) {
    const Float count = Broadcast<Simd>(static_cast<float>(tile.count));
    ForChannels(tile, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kParts] = {};
      for (std::int64_t i = 0; i < tile.count; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          sum[v] += part.Load(tile.x + i * tile.stride + c, v);
        }
      }
      Float square[kParts] = {};
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) sum[v] /= count;
      for (std::int64_t i = 0; i < tile.count; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          const Float distance = part.Load(tile.x + i * tile.stride + c, v) - sum[v];
          square[v] += distance * distance;
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        part.Store(mean + c, v, sum[v]);
        part.Store(squares + c, v, square[v]);
      }
    });
  }

  static void Normalize(const ChannelTile& tile, const Affine& affine) {
    ForChannels(tile, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float mean[kParts], scale[kParts], offset[kParts];
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        mean[v] = part.Load(affine.mean + c, v);
        scale[v] = part.Load(affine.scale + c, v);
        offset[v] = part.Load(affine.offset + c, v);
      }
      for (std::int64_t i = 0; i < tile.count; ++i) {
        const std::int64_t at = i * tile.stride + c;
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          const Float x = part.Load(tile.x + at, v);
          part.Store(tile.to + at, v, (x - mean[v]) * scale[v] + offset[v]);
        }
      }
    });
  }

  static void GradientSums(const ChannelTile& tile, const float* means, float* sums,
                           float* products) {
    ForChannels(tile, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float mean[kParts], sum[kParts] = {}, product[kParts] = {};
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) mean[v] = part.Load(means + c, v);
      for (std::int64_t i = 0; i < tile.count; ++i) {
        const std::int64_t at = i * tile.stride + c;
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          const Float grad_y = part.Load(tile.grad_y + at, v);
          sum[v] += grad_y;
          product[v] += grad_y * (part.Load(tile.x + at, v) - mean[v]);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        part.Store(sums + c, v, sum[v]);
        part.Store(products + c, v, product[v]);
      }
    });
  }

  static void Gradient(const ChannelTile& tile, const AffineGradient& affine) {
    // Half as many vectors: each needs four registers of coefficients.
    ForCoveringVectors<Simd, Format, kVectors / 2>(
        tile.channels, [&](auto part, std::int64_t c) {
          constexpr int kParts = decltype(part)::kVectors;
          Float mean[kParts], scale[kParts], mean_term[kParts], variance_term[kParts];
#pragma GCC unroll 4
          for (int v = 0; v < kParts; ++v) {
            mean[v] = part.Load(affine.mean + c, v);
            scale[v] = part.Load(affine.scale + c, v);
            mean_term[v] = part.Load(affine.mean_term + c, v);
            variance_term[v] = part.Load(affine.variance_term + c, v);
          }
          for (std::int64_t i = 0; i < tile.count; ++i) {
            const std::int64_t at = i * tile.stride + c;
#pragma GCC unroll 4
            for (int v = 0; v < kParts; ++v) {
              const Float x = part.Load(tile.x + at, v) - mean[v];
              const Float grad_y = part.Load(tile.grad_y + at, v);
              part.Store(tile.to + at, v,
                         grad_y * scale[v] - (mean_term[v] + x * variance_term[v]));
            }
          }
        });
  }
};

// One contiguous channel: the lanes of a vector are its elements.
template <class Simd, class Format>
struct ContiguousChannel {
  using Float = typename Simd::Float;
  static constexpr int kVectors = 4;

  static float Sum(const Float (&sums)[kVectors]) {
    float total = 0;
    for (const Float& sum : sums) {
      for (int i = 0; i < Simd::kWidth; ++i) total += sum[i];
    }
    return total;
  }

  static void Sums(const ChannelTile& tile, float* sums) {
    Float sum[kVectors] = {};
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        sum[v] += part.Load(tile.x + i, v);
      }
    });
    *sums = Sum(sum);
  }

  static void Moments(const ChannelTile& tile, float* mean, float* squares) {
    Float square[kVectors] = {};
    Sums(tile, mean);
    *mean /= static_cast<float>(tile.count);
    const Float center = Broadcast<Simd>(*mean);
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        const Float distance = part.Load(tile.x + i, v) - center;
        square[v] += part.Fill(distance * distance, 0);
      }
    });
    *squares = Sum(square);
  }

  static void Normalize(const ChannelTile& tile, const Affine& affine) {
    const Float mean = Broadcast<Simd>(*affine.mean);
    const Float scale = Broadcast<Simd>(*affine.scale);
    const Float offset = Broadcast<Simd>(*affine.offset);
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        part.Store(tile.to + i, v,
                   (part.Load(tile.x + i, v) - mean) * scale + offset);
      }
    });
  }

  static void GradientSums(const ChannelTile& tile, const float* means, float* sums,
                           float* products) {
    const Float mean = Broadcast<Simd>(*means);
    Float sum[kVectors] = {}, product[kVectors] = {};
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        const Float grad_y = part.Load(tile.grad_y + i, v);
        sum[v] += grad_y;
        product[v] += grad_y * (part.Load(tile.x + i, v) - mean);
      }
    });
    *sums = Sum(sum);
    *products = Sum(product);
  }

  static void Gradient(const ChannelTile& tile, const AffineGradient& affine) {
    const Float mean = Broadcast<Simd>(*affine.mean);
    const Float scale = Broadcast<Simd>(*affine.scale);
    const Float mean_term = Broadcast<Simd>(*affine.mean_term);
    const Float variance_term = Broadcast<Simd>(*affine.variance_term);
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        const Float x = part.Load(tile.x + i, v) - mean;
        const Float grad_y = part.Load(tile.grad_y + i, v);
        part.Store(tile.to + i, v, grad_y * scale - (mean_term + x * variance_term));
      }
    });
  }
};

// Selects the function for the layout and the format of a tile.
template <class Simd>
struct BatchNormOf {
  template <class Function>
  static void With(const ChannelTile& tile, const Function& function) {
    const bool half = tile.type == DataType::kHalf;
    if (tile.is_contiguous) {
      half ? function(ContiguousChannel<Simd, Half<Simd>>{})
           : function(ContiguousChannel<Simd, Bfloat16<Simd>>{});
    } else {
      half ? function(InterleavedChannels<Simd, Half<Simd>>{})
           : function(InterleavedChannels<Simd, Bfloat16<Simd>>{});
    }
  }

  static void Sums(const ChannelTile& tile, float* sums) {
    With(tile, [&](auto kernel) { kernel.Sums(tile, sums); });
  }
  static void Moments(const ChannelTile& tile, float* mean, float* squares) {
    With(tile, [&](auto kernel) { kernel.Moments(tile, mean, squares); });
  }
  static void Normalize(const ChannelTile& tile, const Affine& affine) {
    With(tile, [&](auto kernel) { kernel.Normalize(tile, affine); });
  }
  static void GradientSums(const ChannelTile& tile, const float* mean, float* sums,
                           float* products) {
    With(tile, [&](auto kernel) { kernel.GradientSums(tile, mean, sums, products); });
  }
  static void Gradient(const ChannelTile& tile, const AffineGradient& affine) {
    With(tile, [&](auto kernel) { kernel.Gradient(tile, affine); });
  }
};

template <class Simd>
constexpr BatchNormKernel kBatchNormKernel = {
    BatchNormOf<Simd>::Sums,
    BatchNormOf<Simd>::Moments,
    BatchNormOf<Simd>::Normalize,
    BatchNormOf<Simd>::GradientSums,
    BatchNormOf<Simd>::Gradient,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_
