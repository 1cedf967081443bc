// Where a depthwise convolution (keras_mp/depthwise_conv.h) finds what it sums over, along
// one of its dimensions, and the checks of its arguments, for every device.

#ifndef KERAS_MP_SRC_COMMON_CONVOLVED_POSITION_H_
#define KERAS_MP_SRC_COMMON_CONVOLVED_POSITION_H_

#include <cstdint>
#include <initializer_list>

#include "common/host_device.h"
#include "keras_mp/depthwise_conv.h"
#include "keras_mp/status.h"

namespace keras_mp {

constexpr std::int64_t kNowhere = -1;

// The position of x that y[o] multiplies by element k of the kernel.
static KERAS_MP_HOST_DEVICE std::int64_t PositionInX(const ConvolvedDimension& d,
                                                     std::int64_t o, std::int64_t k) {
  const std::int64_t at = o * d.stride - d.before + k * d.dilation;
  return at < 0 || at >= d.size ? kNowhere : at;
}

// The position of y that multiplies x[i] by element k of the kernel.
static KERAS_MP_HOST_DEVICE std::int64_t PositionInY(const ConvolvedDimension& d,
                                                     std::int64_t i, std::int64_t k) {
  const std::int64_t at = i + d.before - k * d.dilation;
  if (at < 0) return kNowhere;
  const std::int64_t result = at / d.stride;
  return result * d.stride != at || result >= d.result ? kNowhere : result;
}

inline Status CheckConv(const DepthwiseConv& conv) {
  if (conv.batch < 0 || conv.channels < 0) {
    return {StatusCode::kInvalidArgument, "a size must not be negative"};
  }
  for (const ConvolvedDimension& d : conv.dimensions) {
    if (d.size < 0 || d.result < 0 || d.kernel < 0 || d.stride < 1 || d.dilation < 1) {
      return {StatusCode::kInvalidArgument,
              "a size must not be negative, and strides and dilations must be 1 or more"};
    }
  }
  if (conv.type == DataType::kFloat) {
    return {StatusCode::kInvalidArgument, "x must have 16 bits"};
  }
  if (conv.kernel_type != conv.type && conv.kernel_type != DataType::kFloat) {
    return {StatusCode::kInvalidArgument, "the kernel has the type of x, or FP32"};
  }
  return {};
}

inline Status CheckConv(const DepthwiseConv& conv, DataType bias_type, DataType y_type) {
  for (const DataType type : {bias_type, y_type}) {
    if (type != conv.type && type != DataType::kFloat) {
      return {StatusCode::kInvalidArgument, "bias and y have the type of x, or FP32"};
    }
  }
  return CheckConv(conv);
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_CONVOLVED_POSITION_H_
