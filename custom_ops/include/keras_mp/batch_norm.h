// Batch normalization of 16-bit numbers in FP32: "Mixed Precision Training"
// (Micikevicius et al., 2018, section 3.3).
//
//   y = round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
//
// x is [outer, channels, inner], packed; mean and variance are those of the
// outer * inner numbers of a channel, the variance divided by their count; or, where
// `are_given`, those that the caller has.
//
// Accumulator: FP32 for at most 256 numbers of a row or column of x, in two passes (first
// the mean, then the squared distances from it), and double from there on. So the mean
// errs by at most 2^-15 * mean |x| and the variance by 2^-15 of itself, whatever the
// count.
// Rounding: once, when y is written, to nearest even. What overflows becomes inf.
// A NaN or inf makes its channel NaN, as IEEE 754 says. Without numbers (outer or inner
// is 0) mean and variance are NaN, and the gradients of gamma and beta 0.

#ifndef KERAS_MP_BATCH_NORM_H_
#define KERAS_MP_BATCH_NORM_H_

#include <cstdint>

#include "keras_mp/channel_shape.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

struct BatchNorm {
  ChannelShape shape;
  DataType type = DataType::kHalf;  // of x and y: kHalf or kBfloat16
  float epsilon = 0;
  bool are_given = false;  // mean and variance: read then, and else written

  const void* x = nullptr;
  const float* gamma = nullptr;  // [channels], as all that follow but y
  const float* beta = nullptr;
  void* y = nullptr;
  float* mean = nullptr;
  float* variance = nullptr;
};

// With d the gradient of y, z = (x - mean) / sqrt(variance + epsilon), and the sums and
// means over the numbers of a channel:
//
//   of_beta = sum(d), of_gamma = sum(d * z)
//   of_x = round(gamma / sqrt(variance + epsilon) * (d - mean(d) - z * mean(d * z)))
//
// Where mean and variance were given, of_x is without the two means.
struct BatchNormGradient {
  ChannelShape shape;
  DataType type = DataType::kHalf;  // of x, of_y and of_x
  float epsilon = 0;
  bool are_given = false;  // mean and variance, when y was computed

  const void* x = nullptr;
  const void* of_y = nullptr;
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  void* of_x = nullptr;
  float* of_gamma = nullptr;
  float* of_beta = nullptr;
};

}  // namespace keras_mp

#endif  // KERAS_MP_BATCH_NORM_H_
