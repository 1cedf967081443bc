// The classes of KerasMp>AveragePool and its gradient: their attributes, checks and
// kernels, the functions of average_pool_cpu.h.

#ifndef KERAS_MP_TENSORFLOW_POOL_AVERAGE_POOL_OPS_H_
#define KERAS_MP_TENSORFLOW_POOL_AVERAGE_POOL_OPS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cpu_device.h"
#include "common/op_hooks.h"
#include "keras_mp/average_pool_cpu.h"
#include "tensorflow/core/lib/math/math_util.h"

namespace keras_mp {

// Those of an x, without batch and channels.
using PooledDimensions = std::array<PooledDimension, 3>;

// What both ops have in common.
class PoolOp : public OpHooks {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("window", &window_);
    visit("strides", &strides_);
    visit("padding", &padding_);
  }

  // Window and strides are three integers from 1 to 2^31 - 1, so that no sum of them
  // overflows.
  absl::Status Complete() {
    const auto fits = [](const std::vector<std::int64_t>& numbers) {
      return numbers.size() == 3 &&
             std::all_of(numbers.begin(), numbers.end(), [](std::int64_t number) {
               return number >= 1 && number <= std::numeric_limits<std::int32_t>::max();
             });
    };
    if (fits(window_) && fits(strides_)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "window and strides must be three numbers of 1 or more. Received: window=[",
        absl::StrJoin(window_, ", "), "], strides=[", absl::StrJoin(strides_, ", "),
        "]"));
  }

  std::int64_t window(int d) const { return window_[d]; }
  std::int64_t stride(int d) const { return strides_[d]; }
  bool is_same() const { return padding_ == "same"; }  // otherwise "valid"

  // Of an x that fits.
  PooledDimensions DimensionsOf(const tensorflow::TensorShape& x) const {
    PooledDimensions dimensions;
    for (int d = 0; d < 3; ++d) {
      PooledDimension& one = dimensions[d];
      one.size = x.dim_size(d + 1);
      one.window = window_[d];
      one.stride = strides_[d];
      if (is_same()) {
        one.pooled = tensorflow::MathUtil::CeilOfRatio(one.size, one.stride);
        const std::int64_t outside =
            (one.pooled - 1) * one.stride + one.window - one.size;
        one.before = outside > 0 ? outside / 2 : 0;
      } else {
        one.pooled = one.size < one.window ? 0 : (one.size - one.window) / one.stride + 1;
      }
    }
    return dimensions;
  }

 protected:
  // Checks the shape of x, and returns that of y.
  absl::StatusOr<tensorflow::TensorShape> ShapeOfY(
      const tensorflow::TensorShape& x) const {
    if (x.dims() != 5) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must be [batch, a, b, c, channels]. Received: x.shape=", x.DebugString()));
    }
    tensorflow::TensorShape y = x;
    const auto dimensions = DimensionsOf(x);
    for (int d = 0; d < 3; ++d) y.set_dim(d + 1, dimensions[d].pooled);
    return y;
  }

  AveragePool PoolOf(const tensorflow::TensorShape& x, const TensorView& from,
                     const TensorView& to) const {
    AveragePool pool;
    pool.batch = x.dim_size(0);
    pool.channels = x.dim_size(4);
    pool.type = from.type();
    const auto dimensions = DimensionsOf(x);
    std::copy(dimensions.begin(), dimensions.end(), pool.dimensions);
    pool.from = from.data;
    pool.to = to.data;
    return pool;
  }

 private:
  std::vector<std::int64_t> window_, strides_;
  std::string padding_;
};

// Inputs: x.
class AveragePoolOp : public PoolOp {
 public:
  static constexpr char kName[] = "KerasMp>AveragePool";

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    const auto shape = ShapeOfY(inputs[0].shape);
    TF_RETURN_IF_ERROR(shape.status());
    return Views{{inputs[0].dtype, *shape}};
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    return AveragePoolCpu(PoolOf(inputs[0].shape, inputs[0], outputs[0]),
                          device.threads());
  }
};

// Inputs: the shape of x, grad_y.
class AveragePoolGradientOp : public PoolOp {
 public:
  static constexpr char kName[] = "KerasMp>AveragePoolGradient";
  static constexpr int kConstantInput = 0;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    const TensorView &sizes = inputs[0], &grad_y = inputs[1];
    if (sizes.shape.dims() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape must be a list of sizes. Received: a tensor ",
                       sizes.shape.DebugString()));
    }
    Views grad_x(1);
    grad_x[0].dtype = grad_y.dtype;
    for (std::int64_t i = 0; i < sizes.shape.num_elements(); ++i) {
      TF_RETURN_IF_ERROR(
          grad_x[0].shape.AddDimWithStatus(sizes.As<std::int32_t>()[i]));
    }
    const auto shape = ShapeOfY(grad_x[0].shape);
    TF_RETURN_IF_ERROR(shape.status());
    TF_RETURN_IF_ERROR(CheckTensor("grad_y", grad_y, grad_y.dtype, *shape));
    return grad_x;
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    return AveragePoolGradientCpu(PoolOf(outputs[0].shape, inputs[1], outputs[0]),
                                  device.threads());
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_POOL_AVERAGE_POOL_OPS_H_
