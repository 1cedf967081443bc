// The kernel of cpu/pool/average_pool_kernel.h for one instruction set, as a template; see
// cpu/gemm/gemm_kernel_simd.h.

#ifndef KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_

#include <cstdint>

#include "cpu/pool/average_pool_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd>
struct PoolOf {
  using Float = typename Simd::Float;

  template <class Format>
  static void Sum(const std::uint16_t* from, const Box& box, std::int64_t channels,
                  std::uint16_t* to) {
    ForVectors<Simd, Format, 4>(channels, [&](auto part, std::int64_t c) {
      constexpr int kParts = decltype(part)::kVectors;
      Float sum[kParts] = {};
      for (std::int64_t i = 0; i < box.count[0]; ++i) {
        for (std::int64_t j = 0; j < box.count[1]; ++j) {
          const float weight = box.weights[0][i * box.weight_step] *
                               box.weights[1][j * box.weight_step];
          const std::uint16_t* row = from + (box.first[0] + i) * box.distance[0] +
                                     (box.first[1] + j) * box.distance[1] +
                                     box.first[2] * box.distance[2] + c;
          for (std::int64_t k = 0; k < box.count[2]; ++k) {
            const Float of_all = Set<Simd>(weight * box.weights[2][k * box.weight_step]);
#pragma GCC unroll 4
            for (int v = 0; v < kParts; ++v) {
              sum[v] += part.Load(row + k * box.distance[2], v) * of_all;
            }
          }
        }
      }
      const Float scale = Set<Simd>(box.scale);
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) part.Store(to + c, v, sum[v] * scale);
    });
  }

  static void WeightedSum(DataType type, const void* from, const Box& box,
                          std::int64_t channels, void* to, std::int64_t at) {
    const auto* numbers = static_cast<const std::uint16_t*>(from);
    auto* result = static_cast<std::uint16_t*>(to) + at;
    if (type == DataType::kHalf) {
      Sum<Half<Simd>>(numbers, box, channels, result);
    } else {
      Sum<Bfloat16<Simd>>(numbers, box, channels, result);
    }
  }
};

template <class Simd>
constexpr PoolKernel kPoolKernel = {PoolOf<Simd>::WeightedSum};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_POOL_AVERAGE_POOL_KERNEL_SIMD_H_
