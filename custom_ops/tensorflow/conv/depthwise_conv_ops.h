// The classes of KerasMp>DepthwiseConv and its gradients: their attributes, checks and
// kernels, the functions of depthwise_conv_cpu.h and depthwise_conv_cuda.h. On a GPU layers
// call TensorFlow's convolution; the ops are there for a SavedModel that was written on a
// CPU.

#ifndef KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OPS_H_
#define KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OPS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/op_hooks.h"
#include "keras_mp/depthwise_conv_cpu.h"
#include "keras_mp/depthwise_conv_cuda.h"

namespace keras_mp {

// Up to 2^31 - 1, so that no product of two overflows.
inline bool IsCount(std::int64_t number) {
  return number >= 1 && number <= std::numeric_limits<std::int32_t>::max();
}

inline bool IsPairOfCounts(const std::vector<std::int64_t>& numbers) {
  return numbers.size() == 2 && std::all_of(numbers.begin(), numbers.end(), IsCount);
}

// Checks that each of the tensors has the dtype of x, of 16 bits, or FP32.
inline absl::Status CheckTypes(tensorflow::DataType x,
                               std::initializer_list<tensorflow::DataType> others) {
  for (const tensorflow::DataType other : others) {
    if (Has16Bits(x) && (other == x || other == tensorflow::DT_FLOAT)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "x is half or bfloat16; kernel, bias and y have the dtype of x, or float. "
        "Received: x.dtype=",
        DataTypeString(x), " and ", DataTypeString(other)));
  }
  return absl::OkStatus();
}

// What the three ops have in common.
class ConvOp : public OpHooks {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("strides", &strides_);
    visit("dilations", &dilations_);
    visit.OfCall("is_same", &is_same_);
  }

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    std::string padding;
    TF_RETURN_IF_ERROR(ctx->GetAttr("padding", &padding));
    is_same_ = padding == "same";
    return absl::OkStatus();
  }

  absl::Status Complete() {
    if (IsPairOfCounts(strides_) && IsPairOfCounts(dilations_)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "strides and dilations must be two numbers from 1 to 2^31 - 1. Received: "
        "strides=[",
        absl::StrJoin(strides_, ", "), "], dilations=[", absl::StrJoin(dilations_, ", "),
        "]"));
  }

  ConvolvedDimension Dimension(int d, std::int64_t size, std::int64_t kernel) const {
    return Convolved(size, kernel, strides_[d], dilations_[d], is_same_);
  }

 protected:
  using TensorShape = tensorflow::TensorShape;

  // Of an x and a kernel that fit.
  DepthwiseConv ConvOf(const TensorView& x, const TensorView& kernel) const {
    DepthwiseConv conv;
    conv.batch = x.shape.dim_size(0);
    conv.channels = x.shape.dim_size(3);
    conv.type = x.type();
    conv.kernel_type = kernel.type();
    for (int d = 0; d < 2; ++d) {
      conv.dimensions[d] =
          Dimension(d, x.shape.dim_size(d + 1), kernel.shape.dim_size(d));
    }
    return conv;
  }

  // Checks x, which is [batch, a, b, channels], and the kernel, [a, b, channels, 1], and
  // returns the shape of y.
  absl::StatusOr<TensorShape> ShapeOfY(const TensorView& x,
                                       const TensorView& kernel) const {
    TF_RETURN_IF_ERROR(CheckTypes(x.dtype, {kernel.dtype}));
    const TensorShape &of_x = x.shape, &of_kernel = kernel.shape;
    if (of_x.dims() != 4 || of_kernel.dims() != 4 ||
        of_kernel.dim_size(2) != of_x.dim_size(3) || of_kernel.dim_size(3) != 1 ||
        !IsCount(of_kernel.dim_size(0)) || !IsCount(of_kernel.dim_size(1))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must be [batch, a, b, channels], and the kernel [1 to 2^31 - 1, "
          "1 to 2^31 - 1, channels, 1]. Received: x.shape=",
          of_x.DebugString(), ", kernel.shape=", of_kernel.DebugString()));
    }
    const DepthwiseConv conv = ConvOf(x, kernel);
    const auto& [a, b] = conv.dimensions;
    return TensorShape({conv.batch, a.result, b.result, conv.channels});
  }

  absl::Status CheckGradY(const TensorView& x, const TensorView& kernel,
                          const TensorView& grad_y) const {
    const auto shape = ShapeOfY(x, kernel);
    TF_RETURN_IF_ERROR(shape.status());
    return CheckTensor("grad_y", grad_y, x.dtype, *shape);
  }

 private:
  std::vector<std::int64_t> strides_, dilations_;
  bool is_same_ = false;  // the padding is "same", otherwise "valid"
};

// Inputs: x, kernel, and at most one bias.
class DepthwiseConvOp : public ConvOp {
 public:
  static constexpr char kName[] = "KerasMp>DepthwiseConv";
  static constexpr char kCall[] = "keras_mp.depthwise_conv";
  static constexpr int kMinInputs = 2, kMaxInputs = 3;

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    TF_RETURN_IF_ERROR(ConvOp::ReadOp(ctx));
    return ctx->GetAttr("Tout", &type_of_y_);
  }

  void ReadCall(const Views&, const Views& results) {
    if (!results.empty()) type_of_y_ = results[0].dtype;
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    const TensorView &x = inputs[0], &kernel = inputs[1];
    const auto shape = ShapeOfY(x, kernel);
    TF_RETURN_IF_ERROR(shape.status());
    TF_RETURN_IF_ERROR(CheckTypes(x.dtype, {type_of_y_}));
    if (inputs.size() > 2) {
      const TensorView& bias = inputs[2];
      TF_RETURN_IF_ERROR(CheckTypes(x.dtype, {bias.dtype}));
      const TensorShape channels({x.shape.dim_size(3)});
      if (inputs.size() > 3 || bias.shape != channels) {
        return absl::InvalidArgumentError(absl::StrCat(
            "there is at most one bias, of shape ", channels.DebugString(),
            ". Received: ", inputs.size() - 2, ", the first of shape ",
            bias.shape.DebugString()));
      }
    }
    return Views{{type_of_y_, *shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView &x = inputs[0], &kernel = inputs[1], &y = outputs[0];
    const DepthwiseConv conv = ConvOf(x, kernel);
    const TensorView bias = inputs.size() > 2 ? inputs[2] : TensorView();
    if constexpr (Device::kIsCpu) {
      return DepthwiseConvCpu(conv, x.data, kernel.data, bias.data, bias.type(), y.data,
                              y.type(), device.threads());
    } else {
      return DepthwiseConvCuda(conv, x.data, kernel.data, bias.data, bias.type(), y.data,
                               y.type(), device.stream());
    }
  }

  bool HasBatch(int input) const { return input == 0; }
  bool ResultHasBatch(int) const { return true; }

 private:
  tensorflow::DataType type_of_y_ = tensorflow::DT_INVALID;
};

// Inputs: x, of which the call has only the shape, kernel, grad_y.
class DepthwiseConvGradXOp : public ConvOp {
 public:
  static constexpr char kName[] = "KerasMp>DepthwiseConvGradX";
  static constexpr char kCall[] = "keras_mp.depthwise_conv_grad_x";
  static constexpr int kMinInputs = 3, kMaxInputs = 3, kShapeInputs = 1;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckGradY(inputs[0], inputs[1], inputs[2]));
    return Views{{inputs[0].dtype, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView &kernel = inputs[1], &grad_y = inputs[2], &grad_x = outputs[0];
    const DepthwiseConv conv = ConvOf(grad_x, kernel);
    if constexpr (Device::kIsCpu) {
      return DepthwiseConvGradXCpu(conv, kernel.data, grad_y.data, grad_x.data,
                                   device.threads());
    } else {
      return DepthwiseConvGradXCuda(conv, kernel.data, grad_y.data, grad_x.data,
                                    device.stream());
    }
  }

  bool HasBatch(int input) const { return input != 1; }
  bool ResultHasBatch(int) const { return true; }
};

// Inputs: x, grad_y.
class DepthwiseConvGradKernelOp : public ConvOp {
 public:
  static constexpr char kName[] = "KerasMp>DepthwiseConvGradKernel";
  static constexpr char kCall[] = "keras_mp.depthwise_conv_grad_kernel";
  static constexpr int kMinInputs = 2, kMaxInputs = 2;

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    TF_RETURN_IF_ERROR(ConvOp::ReadOp(ctx));
    return ctx->GetAttr("kernel_size", &kernel_size_);
  }

  void ReadCall(const Views&, const Views& results) {
    if (results.empty() || results[0].shape.dims() != 4) return;
    kernel_size_ = {results[0].shape.dim_size(0), results[0].shape.dim_size(1)};
  }

  absl::Status Complete() {
    TF_RETURN_IF_ERROR(ConvOp::Complete());
    if (IsPairOfCounts(kernel_size_)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("kernel_size must be two numbers from 1 to 2^31 - 1. Received: [",
                     absl::StrJoin(kernel_size_, ", "), "]"));
  }

  const std::vector<std::int64_t>& kernel_size() const { return kernel_size_; }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    const TensorView& x = inputs[0];
    TensorView kernel;
    kernel.dtype = tensorflow::DT_FLOAT;
    const int dims = x.shape.dims();
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
        {kernel_size_[0], kernel_size_[1], dims == 0 ? 0 : x.shape.dim_size(dims - 1), 1},
        &kernel.shape));
    TF_RETURN_IF_ERROR(CheckGradY(x, kernel, inputs[1]));
    return Views{kernel};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView &x = inputs[0], &grad_y = inputs[1];
    const DepthwiseConv conv = ConvOf(x, outputs[0]);
    float* const grad_kernel = outputs[0].As<float>();
    if constexpr (Device::kIsCpu) {
      return DepthwiseConvGradKernelCpu(conv, x.data, grad_y.data, grad_kernel,
                                        device.threads());
    } else {
      return device.WithWorkspace(
          DepthwiseConvGradKernelWorkspaceBytes(conv), [&](void* workspace) {
            return DepthwiseConvGradKernelCuda(conv, x.data, grad_y.data, grad_kernel,
                                               workspace, device.stream());
          });
    }
  }

  bool HasBatch(int) const { return true; }

 private:
  std::vector<std::int64_t> kernel_size_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OPS_H_
