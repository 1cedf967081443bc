// The classes of KerasMp>Softmax, KerasMp>FloatSoftmax, KerasMp>RowNorm and their gradients:
// their attributes, checks and kernels, the functions of softmax_cpu.h, row_norm_cpu.h and
// their CUDA counterparts.

#ifndef KERAS_MP_TENSORFLOW_NORM_ROW_OPS_H_
#define KERAS_MP_TENSORFLOW_NORM_ROW_OPS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/op_hooks.h"
#include "keras_mp/row_norm_cpu.h"
#include "keras_mp/row_norm_cuda.h"
#include "keras_mp/softmax_cpu.h"
#include "keras_mp/softmax_cuda.h"

namespace keras_mp {

// What the ops have in common: the first `matrices` inputs are [rows, size], the others
// [size].
class RowOp : public OpHooks {
 protected:
  static absl::Status CheckInputs(const Views& inputs, int matrices) {
    const tensorflow::TensorShape& x = inputs[0].shape;
    if (x.dims() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must be [rows, size]. Received: x.shape=", x.DebugString()));
    }
    return CheckShapes(inputs, matrices, tensorflow::TensorShape({x.dim_size(1)}));
  }

  template <class Problem>
  static Problem ProblemOf(const TensorView& x, DataType type) {
    Problem problem;
    problem.rows = x.shape.dim_size(0);
    problem.size = x.shape.dim_size(1);
    problem.type = type;
    return problem;
  }
};

// Inputs: x.
class SoftmaxOp : public RowOp {
 public:
  static constexpr char kName[] = "KerasMp>Softmax";

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("T", &type_);
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*matrices=*/1));
    return Views{{type_, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView &x = inputs[0], &y = outputs[0];
    auto softmax = ProblemOf<Softmax>(x, y.type());
    softmax.is_x_float = x.dtype == tensorflow::DT_FLOAT;
    softmax.x = x.data;
    softmax.y = y.data;
    if constexpr (Device::kIsCpu) {
      return SoftmaxCpu(softmax, device.threads());
    } else {
      return SoftmaxCuda(softmax, device.stream());
    }
  }

 private:
  tensorflow::DataType type_ = tensorflow::DT_INVALID;
};

// Inputs: an FP32 x.
class FloatSoftmaxOp : public SoftmaxOp {
 public:
  static constexpr char kName[] = "KerasMp>FloatSoftmax";
};

// Inputs: x, grad_y.
class SoftmaxGradientOp : public RowOp {
 public:
  static constexpr char kName[] = "KerasMp>SoftmaxGradient";

  template <class Visitor>
  void Visit(Visitor&) {}

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*matrices=*/2));
    return Views{{inputs[0].dtype, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView& x = inputs[0];
    auto gradient = ProblemOf<SoftmaxGradient>(x, x.type());
    gradient.x = x.data;
    gradient.grad_y = inputs[1].data;
    gradient.grad_x = outputs[0].data;
    if constexpr (Device::kIsCpu) {
      return SoftmaxGradientCpu(gradient, device.threads());
    } else {
      return SoftmaxGradientCuda(gradient, device.stream());
    }
  }
};

// Inputs: y, grad_y.
class FloatSoftmaxGradientOp : public RowOp {
 public:
  static constexpr char kName[] = "KerasMp>FloatSoftmaxGradient";

  template <class Visitor>
  void Visit(Visitor&) {}

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*matrices=*/2));
    return Views{{tensorflow::DT_FLOAT, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    const TensorView& y = inputs[0];
    auto gradient = ProblemOf<FloatSoftmaxGradient>(y, y.type());
    gradient.y = y.data;
    gradient.grad_y = inputs[1].data;
    gradient.grad_x = outputs[0].As<float>();
    if constexpr (Device::kIsCpu) {
      return FloatSoftmaxGradientCpu(gradient, device.threads());
    } else {
      return FloatSoftmaxGradientCuda(gradient, device.stream());
    }
  }
};

// The attributes that both ops of a normalization have.
class RowNormBaseOp : public RowOp {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("kind", &kind_);
    visit("epsilon", &epsilon_);
    visit("num_gamma", &gammas_);
    visit("num_beta", &betas_);
  }

  absl::Status Complete() {
    if (gammas_ < 0 || gammas_ > 1 || betas_ < 0 || betas_ > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is at most one gamma and one beta. Received: ", gammas_,
                       " and ", betas_));
    }
    if (kind_ != "layer" && kind_ != "unit_length" && kind_ != "root_mean_square") {
      return absl::InvalidArgumentError(absl::StrCat(
          "kind must be layer, root_mean_square or unit_length. Received: ", kind_));
    }
    return CheckEpsilon(epsilon_);
  }

  RowNormKind kind() const {
    return kind_ == "layer"         ? RowNormKind::kLayer
           : kind_ == "unit_length" ? RowNormKind::kUnitLength
                                    : RowNormKind::kRootMeanSquare;
  }
  float epsilon() const { return epsilon_; }
  bool has_gamma() const { return gammas_ == 1; }
  bool has_beta() const { return betas_ == 1; }

 protected:
  template <class Problem>
  Problem NormOf(const TensorView& x) const {
    auto norm = ProblemOf<Problem>(x, x.type());
    norm.kind = kind();
    norm.epsilon = epsilon_;
    norm.x = x.data;
    return norm;
  }

 private:
  std::string kind_;
  float epsilon_ = 0;
  std::int64_t gammas_ = 0, betas_ = 0;
};

// Inputs: x, gamma and beta, where there are any.
class RowNormOp : public RowNormBaseOp {
 public:
  static constexpr char kName[] = "KerasMp>RowNorm";
  static constexpr char kCall[] = "keras_mp.row_norm";
  static constexpr int kMinInputs = 1, kMaxInputs = 3;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckDtypes(inputs, 1, 1 + has_gamma() + has_beta()));
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*matrices=*/1));
    return Views{{inputs[0].dtype, inputs[0].shape}};
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    auto norm = NormOf<RowNorm>(inputs[0]);
    if (has_gamma()) norm.gamma = inputs[1].As<float>();
    if (has_beta()) norm.beta = inputs.back().As<float>();
    norm.y = outputs[0].data;
    if constexpr (Device::kIsCpu) {
      return RowNormCpu(norm, device.threads());
    } else {
      return RowNormCuda(norm, device.stream());
    }
  }
};

// Inputs: x, grad_y and a gamma, if there is one. Outputs: the gradients of x, gamma and
// beta.
class RowNormGradientOp : public RowNormBaseOp {
 public:
  static constexpr char kName[] = "KerasMp>RowNormGradient";
  static constexpr char kCall[] = "keras_mp.row_norm_gradient";
  static constexpr int kMinInputs = 2, kMaxInputs = 3;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckDtypes(inputs, 2, 2 + has_gamma()));
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*matrices=*/2));
    const TensorView& x = inputs[0];
    const tensorflow::TensorShape row({x.shape.dim_size(1)});
    Views grads = {{x.dtype, x.shape}};
    if (has_gamma()) grads.push_back({tensorflow::DT_FLOAT, row});
    if (has_beta()) grads.push_back({tensorflow::DT_FLOAT, row});
    return grads;
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    auto gradient = NormOf<RowNormGradient>(inputs[0]);
    gradient.grad_y = inputs[1].data;
    if (has_gamma()) gradient.gamma = inputs[2].As<float>();
    gradient.grad_x = outputs[0].data;
    if (has_gamma()) gradient.grad_gamma = outputs[1].As<float>();
    if (has_beta()) gradient.grad_beta = outputs.back().As<float>();
    if constexpr (Device::kIsCpu) {
      return RowNormGradientCpu(gradient, device.threads());
    } else {
      return device.WithWorkspace(
          RowNormGradientWorkspaceBytes(gradient), [&](void* workspace) {
            return RowNormGradientCuda(gradient, workspace, device.stream());
          });
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_NORM_ROW_OPS_H_
