// The parts of a depthwise convolution that each instruction set has.

#ifndef KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_H_
#define KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// Kernels with so many columns, the usual number, have functions of their own.
inline constexpr int kSlidingColumns = 3;

// Results of one row, which all sum over the same elements of the kernel.
struct ConvolvedRow {
  std::int64_t results;
  std::int64_t channels;
  std::int64_t advance;  // from the elements of one result to those of the next
  std::int64_t to_step;  // from one result to the next
  // In both dimensions: the number of elements of the kernel, and the steps from one to
  // the next, in `from` and in the weights.
  std::int64_t count[2], from_step[2], weight_step[2];
};

struct DepthwiseConvKernel {
  // to = from in FP32, where `from` has 16 bits. FP32 numbers are rounded to `type`.
  void (*widen)(DataType type, bool is_float, const void* from, std::int64_t count,
                float* to);

  // to[r, c] = round(start[c] + sum over i and j of from[r, i, j, c] * weights[i, j, c]).
  // `to` has `to_type`, `type` or kFloat.
  void (*weighted_sums)(DataType type, const ConvolvedRow& row, const std::uint16_t* from,
                        const float* weights, const float* start, DataType to_type,
                        void* to);

  // sums[c] += sum over i of a[i, c] * b[i, c], whose elements i lie a step apart.
  void (*product_sums)(DataType type, std::int64_t count, std::int64_t channels,
                       const std::uint16_t* a, std::int64_t a_step,
                       const std::uint16_t* b, std::int64_t b_step, float* sums);

  // sums[j, c] += sum over i of a[i + j, c] * b[i, c], for all j < kSlidingColumns.
  void (*sliding_product_sums)(DataType type, std::int64_t count, std::int64_t channels,
                               const std::uint16_t* a, const std::uint16_t* b,
                               float* sums);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_CONV_DEPTHWISE_CONV_KERNEL_H_
