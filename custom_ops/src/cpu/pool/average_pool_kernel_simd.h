// Average pooling of one window, for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h.
//
//   to[c] = round(scale * sum over the window of weight * from[position, c])
//
// `from` is [a, b, c, channels] in 16 bits, the sum FP32; the lanes of a vector are
// neighbouring channels.
//
//   cmake --build build/custom_ops --target average_pool_cpu_test &&
//     build/custom_ops/average_pool_cpu_test

#ifndef KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_

#include <cstdint>

#include "cpu/pool/average_pool_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd>
struct AveragePoolOf {
  using Float = typename Simd::Float;

  template <class Format>
  static void Sum(const std::uint16_t* from, const PoolWindow& window,
                  std::int64_t channels, std::uint16_t* to) {
    ForCoveringVectors<Simd, Format, 4>(channels, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kParts] = {};
      for (std::int64_t i = 0; i < window.count[0]; ++i) {
        for (std::int64_t j = 0; j < window.count[1]; ++j) {
          const float weight = window.weights[0][i * window.weight_step] *
                               window.weights[1][j * window.weight_step];
          const std::uint16_t* row = from + (window.first[0] + i) * window.stride[0] +
                                     (window.first[1] + j) * window.stride[1] +
                                     window.first[2] * window.stride[2] + c;
          for (std::int64_t k = 0; k < window.count[2]; ++k) {
            const float last = window.weights[2][k * window.weight_step];
            const Float factor = Broadcast<Simd>(weight * last);
#pragma GCC unroll 4
            for (int v = 0; v < kParts; ++v) {
              sum[v] += part.Load(row + k * window.stride[2], v) * factor;
            }
          }
        }
      }
      const Float scale = Broadcast<Simd>(window.scale);
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) part.Store(to + c, v, sum[v] * scale);
    });
  }

  static void WeightedSum(DataType type, const void* from, const PoolWindow& window,
                          std::int64_t channels, void* to, std::int64_t at) {
    const auto* x = static_cast<const std::uint16_t*>(from);
    auto* result = static_cast<std::uint16_t*>(to) + at;
    if (type == DataType::kHalf) {
      Sum<Half<Simd>>(x, window, channels, result);
    } else {
      Sum<Bfloat16<Simd>>(x, window, channels, result);
    }
  }
};

template <class Simd>
constexpr AveragePoolKernel kAveragePoolKernel = {AveragePoolOf<Simd>::WeightedSum};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_
