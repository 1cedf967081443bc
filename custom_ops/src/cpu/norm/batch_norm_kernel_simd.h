// The kernels of cpu/norm/batch_norm_kernel.h for one instruction set, as a template; see
// cpu/gemm/gemm_kernel_simd.h.

#ifndef KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_

#include <cstdint>

#include "cpu/norm/batch_norm_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

// Channels side by side: a vector has a number of each of several channels.
template <class Simd, class Format>
struct Columns {
  using Float = typename Simd::Float;
  // In 16-bit numbers a line of the cache with vectors of 8.
  static constexpr int kVectors = 4;

  static void Sums(const ChannelTile& tile, float* sums) {
    ForVectors<Simd, Format, kVectors>(tile.channels, [&](auto part, std::int64_t c) {
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
    const Float count = Set<Simd>(static_cast<float>(tile.count));
    ForVectors<Simd, Format, kVectors>(tile.channels, [&](auto part, std::int64_t c) {
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
    ForVectors<Simd, Format, kVectors>(tile.channels, [&](auto part, std::int64_t c) {
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
    ForVectors<Simd, Format, kVectors>(tile.channels, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float mean[kParts], sum[kParts] = {}, product[kParts] = {};
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) mean[v] = part.Load(means + c, v);
      for (std::int64_t i = 0; i < tile.count; ++i) {
        const std::int64_t at = i * tile.stride + c;
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          const Float of_y = part.Load(tile.of_y + at, v);
          sum[v] += of_y;
          product[v] += of_y * (part.Load(tile.x + at, v) - mean[v]);
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
    // Half as many vectors: each needs four registers for its channels.
    ForVectors<Simd, Format, kVectors / 2>(
        tile.channels, [&](auto part, std::int64_t c) {
          constexpr int kParts = decltype(part)::kVectors;
          Float mean[kParts], scale[kParts], through[kParts], slope[kParts];
#pragma GCC unroll 4
          for (int v = 0; v < kParts; ++v) {
            mean[v] = part.Load(affine.mean + c, v);
            scale[v] = part.Load(affine.scale + c, v);
            through[v] = part.Load(affine.through_mean + c, v);
            slope[v] = part.Load(affine.through_variance + c, v);
          }
          for (std::int64_t i = 0; i < tile.count; ++i) {
            const std::int64_t at = i * tile.stride + c;
#pragma GCC unroll 4
            for (int v = 0; v < kParts; ++v) {
              const Float x = part.Load(tile.x + at, v) - mean[v];
              const Float of_y = part.Load(tile.of_y + at, v);
              part.Store(tile.to + at, v,
                         of_y * scale[v] - (through[v] + x * slope[v]));
            }
          }
        });
  }
};

// One channel whose numbers lie side by side: a vector has several of them.
template <class Simd, class Format>
struct Run {
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
    const Float center = Set<Simd>(*mean);
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
    const Float mean = Set<Simd>(*affine.mean), scale = Set<Simd>(*affine.scale);
    const Float offset = Set<Simd>(*affine.offset);
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
    const Float mean = Set<Simd>(*means);
    Float sum[kVectors] = {}, product[kVectors] = {};
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        const Float of_y = part.Load(tile.of_y + i, v);
        sum[v] += of_y;
        product[v] += of_y * (part.Load(tile.x + i, v) - mean);
      }
    });
    *sums = Sum(sum);
    *products = Sum(product);
  }

  static void Gradient(const ChannelTile& tile, const AffineGradient& affine) {
    const Float mean = Set<Simd>(*affine.mean), scale = Set<Simd>(*affine.scale);
    const Float through = Set<Simd>(*affine.through_mean);
    const Float slope = Set<Simd>(*affine.through_variance);
    ForVectors<Simd, Format, kVectors>(tile.count, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) {
        const Float x = part.Load(tile.x + i, v) - mean;
        const Float of_y = part.Load(tile.of_y + i, v);
        part.Store(tile.to + i, v, of_y * scale - (through + x * slope));
      }
    });
  }
};

// Calls the function of the layout and format of a tile.
template <class Simd>
struct ChannelTileOf {
  template <class Function>
  static void With(const ChannelTile& tile, const Function& function) {
    const bool half = tile.type == DataType::kHalf;
    if (tile.is_run) {
      half ? function(Run<Simd, Half<Simd>>{}) : function(Run<Simd, Bfloat16<Simd>>{});
    } else {
      half ? function(Columns<Simd, Half<Simd>>{})
           : function(Columns<Simd, Bfloat16<Simd>>{});
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
constexpr ChannelKernel kChannelKernel = {
    ChannelTileOf<Simd>::Sums,
    ChannelTileOf<Simd>::Moments,
    ChannelTileOf<Simd>::Normalize,
    ChannelTileOf<Simd>::GradientSums,
    ChannelTileOf<Simd>::Gradient,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_BATCH_NORM_KERNEL_SIMD_H_
