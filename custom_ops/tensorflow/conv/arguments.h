// The attributes and tensors of the ops of a depthwise convolution, checked.

#ifndef KERAS_MP_TENSORFLOW_CONV_ARGUMENTS_H_
#define KERAS_MP_TENSORFLOW_CONV_ARGUMENTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "keras_mp/depthwise_conv.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace keras_mp {

struct ConvAttributes {
  std::vector<std::int64_t> strides, dilations;
  bool is_same = false;  // the padding is "same", otherwise "valid"
};

// Up to 2^31 - 1, so that no product of two overflows.
inline bool IsCount(std::int64_t number) {
  return number >= 1 && number <= std::numeric_limits<std::int32_t>::max();
}

inline bool IsPairOfCounts(const std::vector<std::int64_t>& numbers) {
  return numbers.size() == 2 && std::all_of(numbers.begin(), numbers.end(), IsCount);
}

// `Context` is the context of a kernel's construction or of a shape function.
template <class Context>
absl::Status GetConvAttributes(Context* ctx, ConvAttributes* attributes) {
  std::string padding;
  TF_RETURN_IF_ERROR(ctx->GetAttr("strides", &attributes->strides));
  TF_RETURN_IF_ERROR(ctx->GetAttr("dilations", &attributes->dilations));
  TF_RETURN_IF_ERROR(ctx->GetAttr("padding", &padding));
  attributes->is_same = padding == "same";
  if (IsPairOfCounts(attributes->strides) && IsPairOfCounts(attributes->dilations)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "strides and dilations must be two numbers from 1 to 2^31 - 1. Received: strides=[",
      absl::StrJoin(attributes->strides, ", "), "], dilations=[",
      absl::StrJoin(attributes->dilations, ", "), "]"));
}

// The first two sizes of the kernel, each 1 or more.
template <class Context>
absl::Status GetKernelSize(Context* ctx, std::vector<std::int64_t>* kernel_size) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("kernel_size", kernel_size));
  if (IsPairOfCounts(*kernel_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("kernel_size must be two numbers from 1 to 2^31 - 1. Received: [",
                   absl::StrJoin(*kernel_size, ", "), "]"));
}

// `x` is [batch, a, b, channels], `kernel` [a, b, channels, 1].
inline absl::Status MakeDepthwiseConv(const tensorflow::TensorShape& x,
                                      const tensorflow::TensorShape& kernel,
                                      const ConvAttributes& attributes,
                                      tensorflow::DataType type, DepthwiseConv* conv) {
  if (x.dims() != 4 || kernel.dims() != 4 || kernel.dim_size(2) != x.dim_size(3) ||
      kernel.dim_size(3) != 1 || !IsCount(kernel.dim_size(0)) ||
      !IsCount(kernel.dim_size(1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "x must be [batch, a, b, channels], and the kernel [1 to 2^31 - 1, "
        "1 to 2^31 - 1, channels, 1]. Received: x.shape=",
        x.DebugString(), ", kernel.shape=", kernel.DebugString()));
  }
  conv->batch = x.dim_size(0);
  conv->channels = x.dim_size(3);
  conv->type = TypeOf(type);
  for (int d = 0; d < 2; ++d) {
    conv->dimensions[d] =
        Convolved(x.dim_size(d + 1), kernel.dim_size(d), attributes.strides[d],
                  attributes.dilations[d], attributes.is_same);
  }
  return absl::OkStatus();
}

inline absl::Status KernelShape(const tensorflow::TensorShape& x,
                                const std::vector<std::int64_t>& kernel_size,
                                tensorflow::TensorShape* kernel) {
  const std::int64_t channels = x.dims() == 0 ? 0 : x.dim_size(x.dims() - 1);
  return tensorflow::TensorShape::BuildTensorShape(
      {kernel_size[0], kernel_size[1], channels, 1}, kernel);
}

// The shape of y.
inline tensorflow::TensorShape ResultShape(const DepthwiseConv& conv) {
  const auto& [a, b] = conv.dimensions;
  return tensorflow::TensorShape({conv.batch, a.result, b.result, conv.channels});
}

inline absl::Status CheckGradYShape(const DepthwiseConv& conv,
                                    const tensorflow::TensorShape& grad_y) {
  if (grad_y == ResultShape(conv)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "grad_y must have the shape ", ResultShape(conv).DebugString(),
      ". Received: ", grad_y.DebugString()));
}

// `biases`: those of the op, of which there is at most one.
inline absl::Status CheckBias(const DepthwiseConv& conv,
                              const std::vector<tensorflow::TensorShape>& biases) {
  if (biases.empty()) return absl::OkStatus();
  if (biases.size() == 1 && biases[0] == tensorflow::TensorShape({conv.channels})) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is at most one bias, of shape [", conv.channels,
                   "]. Received: ", biases.size(), ", the first of shape ",
                   biases[0].DebugString()));
}

// Whether each of the types is that of x, or FP32.
inline absl::Status CheckTypes(tensorflow::DataType x,
                               const std::vector<tensorflow::DataType>& types) {
  for (const tensorflow::DataType type : types) {
    if (type == x || type == tensorflow::DT_FLOAT) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "kernel, bias and y have the dtype of x, or float32. Received: x.dtype=",
        tensorflow::DataTypeString(x), " and ", tensorflow::DataTypeString(type)));
  }
  return absl::OkStatus();
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_CONV_ARGUMENTS_H_
