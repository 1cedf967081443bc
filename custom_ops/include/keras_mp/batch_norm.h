// Batch normalization of 16-bit tensors in FP32: "Mixed Precision Training"
// (Micikevicius et al., 2018, section 3.3). batch_norm_cpu.h and batch_norm_cuda.h
// declare the functions that compute it.
//
//   y = round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
//
// x is [outer, channels, inner], packed. In training, mean and variance are those of the
// outer * inner elements of a channel, the variance divided by their count; in inference
// they are inputs.
//
// Accumulator: FP32 for at most 256 elements of a channel, in two passes (first the mean,
// then the squared distances from it), then double for their sums. So the mean errs by at
// most 2^-15 * mean |x| and the variance by 2^-15 of itself, whatever the count.
// Rounding: once, when y is written, to nearest even. What overflows becomes inf.
// A NaN or inf makes its channel NaN, as IEEE 754 says. Without elements (outer or inner
// is 0) mean and variance are NaN, and the gradients of gamma and beta are 0.

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
  bool inference = false;  // whether mean and variance are read, or else written

  const void* x = nullptr;
  const float* gamma = nullptr;  // [channels], as all that follow but y
  const float* beta = nullptr;
  void* y = nullptr;
  float* mean = nullptr;
  float* variance = nullptr;
};

// With z = (x - mean) / sqrt(variance + epsilon), and sums and means over the elements of
// a channel:
//
//   grad_beta = sum(grad_y), grad_gamma = sum(grad_y * z)
//   grad_x = round(gamma / sqrt(variance + epsilon) *
//                  (grad_y - mean(grad_y) - z * mean(grad_y * z)))
//
// In inference, grad_x is without the two means.
struct BatchNormGradient {
  ChannelShape shape;
  DataType type = DataType::kHalf;  // of x, grad_y and grad_x
  float epsilon = 0;
  bool inference = false;  // whether y was computed in inference

  const void* x = nullptr;
  const void* grad_y = nullptr;
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  void* grad_x = nullptr;
  float* grad_gamma = nullptr;
  float* grad_beta = nullptr;
};

}  // namespace keras_mp

#endif  // KERAS_MP_BATCH_NORM_H_
