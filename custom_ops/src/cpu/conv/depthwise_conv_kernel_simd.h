// The parts of a depthwise convolution for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h. The lanes of a vector are neighbouring channels.
//
//   cmake --build build/custom_ops --target depthwise_conv_cpu_test &&
//     build/custom_ops/depthwise_conv_cpu_test

#ifndef KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_SIMD_H_

#include <cstdint>
#include <type_traits>

#include "cpu/conv/depthwise_conv_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
struct DepthwiseConvIn {
  using Float = typename Simd::Float;
  // A tile of the results of a row: weights that are loaded once serve all of them.
  static constexpr int kTile = 4;
  static constexpr int kColumns = kSlidingColumns;

  static void Widen(const std::uint16_t* from, std::int64_t count, float* to) {
    ForVectors<Simd, Format, 1>(count, [&](auto part, std::int64_t i) {
      part.Store(to + i, 0, part.Load(from + i, 0));
    });
  }

  static void Round(const float* from, std::int64_t count, float* to) {
    ForVectors<Simd, Format, 1>(count, [&](auto part, std::int64_t i) {
      typename Format::Element rounded[Simd::kWidth];
      Format::Store(rounded, part.Load(from + i, 0));
      part.Store(to + i, 0, Format::Load(rounded));
    });
  }

  template <class To>
  static void WeightedSums(const ConvolvedRow& row, const std::uint16_t* from,
                           const float* weights, const float* start, To* to) {
    const bool slides = row.count[1] == kColumns && row.from_step[1] == row.advance;
    ForCoveringVectors<Simd, Format, 2>(row.channels, [&](auto part, std::int64_t c) {
      std::int64_t r = 0;
      for (; r + kTile <= row.results; r += kTile) {
        const auto tile = slides ? Tile<kTile, kColumns, decltype(part), To>
                                 : Tile<kTile, 0, decltype(part), To>;
        tile(part, row, from + r * row.advance + c, weights + c, start + c,
             to + r * row.to_step + c);
      }
      for (; r < row.results; ++r) {
        Tile<1, 0>(part, row, from + r * row.advance + c, weights + c, start + c,
                   to + r * row.to_step + c);
      }
    });
  }

  // `kSlides`: the number of columns of the kernel, if it slides by one column from each
  // result to the next; otherwise 0.
  template <int kResults, int kSlides, class Part, class To>
  static void Tile(const Part& part, const ConvolvedRow& row, const std::uint16_t* from,
                   const float* weights, const float* start, To* to) {
    constexpr int kParts = Part::kVectors;
    Float sum[kResults][kParts];
#pragma GCC unroll 2
    for (int v = 0; v < kParts; ++v) {
      const Float first = part.Load(start, v);
#pragma GCC unroll 4
      for (int r = 0; r < kResults; ++r) sum[r][v] = first;
    }
    // What the next row of results reads first, and what the next tiles write to: with
    // data that no cache holds, this takes two thirds of the time.
    const std::uint16_t* next = from + row.count[0] * row.from_step[0];
#pragma GCC unroll 4
    for (int r = 0; r < kResults; ++r) {
      __builtin_prefetch(next + (r + kSlides) * row.advance);
      __builtin_prefetch(to + (r + 2 * kTile) * row.to_step, /*rw=*/1);
    }
    for (std::int64_t i = 0; i < row.count[0]; ++i) {
      const std::uint16_t* x = from + i * row.from_step[0];
      const float* w = weights + i * row.weight_step[0];
      if constexpr (kSlides > 0) {
#pragma GCC unroll 2
        for (int v = 0; v < kParts; ++v) {
          Float weight[kSlides];
#pragma GCC unroll 4
          for (int j = 0; j < kSlides; ++j) {
            weight[j] = part.Load(w + j * row.weight_step[1], v);
          }
          // Each column is loaded and converted once for all results that it is part of.
#pragma GCC unroll 8
          for (int column = 0; column < kResults + kSlides - 1; ++column) {
            const Float value = part.Load(x + column * row.advance, v);
#pragma GCC unroll 4
            for (int j = 0; j < kSlides; ++j) {
              const int r = column - j;
              if (r >= 0 && r < kResults) sum[r][v] += value * weight[j];
            }
          }
        }
      } else {
        for (std::int64_t j = 0; j < row.count[1]; ++j) {
#pragma GCC unroll 2
          for (int v = 0; v < kParts; ++v) {
            const Float weight = part.Load(w, v);
#pragma GCC unroll 4
            for (int r = 0; r < kResults; ++r) {
              sum[r][v] += part.Load(x + r * row.advance, v) * weight;
            }
          }
          x += row.from_step[1];
          w += row.weight_step[1];
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kResults; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kParts; ++v) part.Store(to + r * row.to_step, v, sum[r][v]);
    }
  }

  // Calls body(vectors, at, first) for vectors that cover all channels; the lanes before
  // `first` are those of an earlier vector.
  template <int kVectors, class Body>
  static void ForSums(std::int64_t channels, const Body& body) {
    std::int64_t end = 0;
    ForCoveringVectors<Simd, Format, kVectors>(channels, [&](auto part, std::int64_t c) {
      body(part, c, end - c);
      end = c + decltype(part)::kVectors * Simd::kWidth;
    });
  }

  // Adds the lanes from `first` on to the sums.
  template <class Part>
  static void Add(const Part& part, const Float (&more)[Part::kVectors],
                  std::int64_t first, float* sums) {
    if (first > 0) {
      float lanes[Simd::kWidth];
      Store<Simd>(lanes, more[0]);
      for (std::int64_t i = first; i < Simd::kWidth; ++i) sums[i] += lanes[i];
      return;
    }
#pragma GCC unroll 4
    for (int v = 0; v < Part::kVectors; ++v) {
      part.Store(sums, v, part.Load(sums, v) + more[v]);
    }
  }

  static void ProductSums(std::int64_t count, std::int64_t channels,
                          const std::uint16_t* a, std::int64_t a_step,
                          const std::uint16_t* b, std::int64_t b_step, float* sums) {
    ForSums<4>(channels, [&](auto part, std::int64_t c, std::int64_t first) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kParts] = {};
      for (std::int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kParts; ++v) {
          sum[v] += part.Load(a + i * a_step + c, v) * part.Load(b + i * b_step + c, v);
        }
      }
      Add(part, sum, first, sums + c);
    });
  }

  static void SlidingProductSums(std::int64_t count, std::int64_t channels,
                                 const std::uint16_t* a, const std::uint16_t* b,
                                 float* sums) {
    ForSums<2>(channels, [&](auto part, std::int64_t c, std::int64_t first) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kColumns][kParts] = {};
      std::int64_t i = 0;
      const auto add = [&](auto tile) {
        constexpr int kRows = decltype(tile)::value;
#pragma GCC unroll 2
        for (int v = 0; v < kParts; ++v) {
          Float factor[kRows];
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            factor[r] = part.Load(b + (i + r) * channels + c, v);
          }
#pragma GCC unroll 8
          for (int column = 0; column < kRows + kColumns - 1; ++column) {
            const Float value = part.Load(a + (i + column) * channels + c, v);
#pragma GCC unroll 4
            for (int j = 0; j < kColumns; ++j) {
              const int r = column - j;
              if (r >= 0 && r < kRows) sum[j][v] += value * factor[r];
            }
          }
        }
      };
      for (; i + kTile <= count; i += kTile) add(std::integral_constant<int, kTile>());
      for (; i < count; ++i) add(std::integral_constant<int, 1>());
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        Add(part, sum[j], first, sums + j * channels + c);
      }
    });
  }
};

// Selects the format of the 16-bit numbers.
template <class Simd>
struct DepthwiseConvOf {
  template <class Function>
  static void With(DataType type, const Function& function) {
    type == DataType::kHalf ? function(DepthwiseConvIn<Simd, Half<Simd>>{})
                            : function(DepthwiseConvIn<Simd, Bfloat16<Simd>>{});
  }

  static void Widen(DataType type, bool is_float, const void* from, std::int64_t count,
                    float* to) {
    With(type, [&](auto in) {
      is_float ? in.Round(static_cast<const float*>(from), count, to)
               : in.Widen(static_cast<const std::uint16_t*>(from), count, to);
    });
  }

  static void WeightedSums(DataType type, const ConvolvedRow& row,
                           const std::uint16_t* from, const float* weights,
                           const float* start, DataType to_type, void* to) {
    With(type, [&](auto in) {
      to_type == DataType::kFloat
          ? in.WeightedSums(row, from, weights, start, static_cast<float*>(to))
          : in.WeightedSums(row, from, weights, start, static_cast<std::uint16_t*>(to));
    });
  }

  static void ProductSums(DataType type, std::int64_t count, std::int64_t channels,
                          const std::uint16_t* a, std::int64_t a_step,
                          const std::uint16_t* b, std::int64_t b_step, float* sums) {
    With(type, [&](auto in) {
      in.ProductSums(count, channels, a, a_step, b, b_step, sums);
    });
  }

  static void SlidingProductSums(DataType type, std::int64_t count, std::int64_t channels,
                                 const std::uint16_t* a, const std::uint16_t* b,
                                 float* sums) {
    With(type, [&](auto in) { in.SlidingProductSums(count, channels, a, b, sums); });
  }
};

template <class Simd>
constexpr DepthwiseConvKernel kDepthwiseConvKernel = {
    DepthwiseConvOf<Simd>::Widen,
    DepthwiseConvOf<Simd>::WeightedSums,
    DepthwiseConvOf<Simd>::ProductSums,
    DepthwiseConvOf<Simd>::SlidingProductSums,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_SIMD_H_
