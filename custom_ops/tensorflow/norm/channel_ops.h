// The classes of KerasMp>BatchNorm, KerasMp>BatchNormInference, their gradient, and
// KerasMp>Sum: their attributes, checks and kernels, the functions of batch_norm_cpu.h,
// sum_cpu.h and their CUDA counterparts.

#ifndef KERAS_MP_TENSORFLOW_NORM_CHANNEL_OPS_H_
#define KERAS_MP_TENSORFLOW_NORM_CHANNEL_OPS_H_

#include "absl/strings/str_cat.h"
#include "common/op_hooks.h"
#include "keras_mp/batch_norm_cpu.h"
#include "keras_mp/batch_norm_cuda.h"
#include "keras_mp/sum_cpu.h"
#include "keras_mp/sum_cuda.h"

namespace keras_mp {

inline absl::Status CheckThreeDimensions(const char* sizes, const TensorView& x) {
  if (x.shape.dims() == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "x must be ", sizes, ". Received: x.shape=", x.shape.DebugString()));
}

// What the ops of a batch normalization have in common. Inputs: the first `wide` are
// [outer, channels, inner], the others [channels].
class ChannelOp : public OpHooks {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("epsilon", &epsilon_);
  }

  absl::Status Complete() { return CheckEpsilon(epsilon_); }

  float epsilon() const { return epsilon_; }

 protected:
  static absl::Status CheckInputs(const Views& inputs, int wide) {
    TF_RETURN_IF_ERROR(CheckThreeDimensions("[outer, channels, inner]", inputs[0]));
    return CheckShapes(inputs, wide, RowOf(inputs[0]).shape);
  }

  // [channels]
  static TensorView RowOf(const TensorView& x) {
    return {tensorflow::DT_FLOAT, tensorflow::TensorShape({x.shape.dim_size(1)})};
  }

  template <class Problem>
  Problem ProblemOf(const TensorView& x) const {
    Problem problem;
    problem.shape = {x.shape.dim_size(0), x.shape.dim_size(1), x.shape.dim_size(2)};
    problem.type = x.type();
    problem.epsilon = epsilon_;
    problem.x = x.data;
    return problem;
  }

  template <class Device>
  static Status Normalize(const Device& device, const BatchNorm& norm) {
    if constexpr (Device::kIsCpu) {
      return BatchNormCpu(norm, device.threads());
    } else {
      return device.WithWorkspace(BatchNormWorkspaceBytes(norm), [&](void* workspace) {
        return BatchNormCuda(norm, workspace, device.stream());
      });
    }
  }

 private:
  float epsilon_ = 0;
};

// Inputs: x, gamma, beta. Outputs: y, mean, variance.
class BatchNormOp : public ChannelOp {
 public:
  static constexpr char kName[] = "KerasMp>BatchNorm";

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*wide=*/1));
    const TensorView& x = inputs[0];
    return Views{{x.dtype, x.shape}, RowOf(x), RowOf(x)};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    auto norm = ProblemOf<BatchNorm>(inputs[0]);
    norm.gamma = inputs[1].As<float>();
    norm.beta = inputs[2].As<float>();
    norm.y = outputs[0].data;
    norm.mean = outputs[1].As<float>();
    norm.variance = outputs[2].As<float>();
    return Normalize(device, norm);
  }
};

// Inputs: x, gamma, beta, mean, variance.
class BatchNormInferenceOp : public ChannelOp {
 public:
  static constexpr char kName[] = "KerasMp>BatchNormInference";

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*wide=*/1));
    return Views{{inputs[0].dtype, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    auto norm = ProblemOf<BatchNorm>(inputs[0]);
    norm.inference = true;
    norm.gamma = inputs[1].As<float>();
    norm.beta = inputs[2].As<float>();
    norm.y = outputs[0].data;
    // They are only read.
    norm.mean = inputs[3].As<float>();
    norm.variance = inputs[4].As<float>();
    return Normalize(device, norm);
  }
};

// Inputs: x, grad_y, gamma, mean, variance. Outputs: the gradients of x, gamma and beta.
class BatchNormGradientOp : public ChannelOp {
 public:
  static constexpr char kName[] = "KerasMp>BatchNormGradient";

  template <class Visitor>
  void Visit(Visitor& visit) {
    ChannelOp::Visit(visit);
    visit("inference", &inference_);
  }

  bool inference() const { return inference_; }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*wide=*/2));
    const TensorView& x = inputs[0];
    return Views{{x.dtype, x.shape}, RowOf(x), RowOf(x)};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    auto gradient = ProblemOf<BatchNormGradient>(inputs[0]);
    gradient.inference = inference_;
    gradient.grad_y = inputs[1].data;
    gradient.gamma = inputs[2].As<float>();
    gradient.mean = inputs[3].As<float>();
    gradient.variance = inputs[4].As<float>();
    gradient.grad_x = outputs[0].data;
    gradient.grad_gamma = outputs[1].As<float>();
    gradient.grad_beta = outputs[2].As<float>();
    if constexpr (Device::kIsCpu) {
      return BatchNormGradientCpu(gradient, device.threads());
    } else {
      return device.WithWorkspace(
          BatchNormGradientWorkspaceBytes(gradient), [&](void* workspace) {
            return BatchNormGradientCuda(gradient, workspace, device.stream());
          });
    }
  }

 private:
  bool inference_ = false;
};

// Inputs: x, [outer, count, inner].
class SumOp : public OpHooks {
 public:
  static constexpr char kName[] = "KerasMp>Sum";
  static constexpr char kCall[] = "keras_mp.sum";
  static constexpr int kMinInputs = 1, kMaxInputs = 1;

  template <class Visitor>
  void Visit(Visitor&) {}

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    const TensorView& x = inputs[0];
    TF_RETURN_IF_ERROR(CheckDtypes(inputs, /*halves=*/1, /*count=*/1));
    TF_RETURN_IF_ERROR(CheckThreeDimensions("[outer, count, inner]", x));
    Views sums(1);
    sums[0].dtype = tensorflow::DT_FLOAT;
    // Where x has no elements, the size of y may overflow.
    TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(
        {x.shape.dim_size(0), x.shape.dim_size(2)}, &sums[0].shape));
    return sums;
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView& x = inputs[0];
    Sum sum;
    sum.outer = x.shape.dim_size(0);
    sum.count = x.shape.dim_size(1);
    sum.inner = x.shape.dim_size(2);
    sum.type = x.type();
    sum.x = x.data;
    sum.y = outputs[0].As<float>();
    if constexpr (Device::kIsCpu) {
      return SumCpu(sum, device.threads());
    } else {
      return device.WithWorkspace(SumWorkspaceBytes(sum), [&](void* workspace) {
        return SumCuda(sum, workspace, device.stream());
      });
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_NORM_CHANNEL_OPS_H_
