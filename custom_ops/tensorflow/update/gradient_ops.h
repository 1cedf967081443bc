// The classes of KerasMp>CheckGradients and KerasMp>UnscaleGradients.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_GRADIENT_OPS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_GRADIENT_OPS_H_

#include <cstdint>
#include <vector>

#include "common/op_hooks.h"
#include "keras_mp/update_cpu.h"
#include "keras_mp/update_cuda.h"
#include "update/tensors.h"

namespace keras_mp {

// What both ops have in common. Inputs: scale, gradients. The last outputs: largest,
// sum_of_squares.
class GradientOp : public OpHooks {
 public:
  static constexpr int kMinInputs = 2;

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("compute_sum_of_squares", &compute_sum_of_squares_);
  }

 protected:
  using TensorShape = tensorflow::TensorShape;

  static absl::Status CheckInputs(const Views& inputs) {
    for (int i = 1; i < static_cast<int>(inputs.size()); ++i) {
      TF_RETURN_IF_ERROR(CheckGradientType(i - 1, inputs[i]));
    }
    return CheckTensor("scale", inputs[0], tensorflow::DT_FLOAT, TensorShape());
  }

  static void AddLastOutputs(const Views& inputs, Views* outputs) {
    const auto count = static_cast<std::int64_t>(inputs.size()) - 1;
    outputs->push_back({tensorflow::DT_FLOAT, TensorShape({count})});
    outputs->push_back({tensorflow::DT_FLOAT, TensorShape()});
  }

  // Calls check(arguments), and sets a sum that is not computed to 0.
  template <class Device, class Check>
  Status WithArguments(const Device& device, const Views& inputs, const Views& outputs,
                       const Check& check) const {
    std::vector<Gradient> gradients;
    gradients.reserve(inputs.size() - 1);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      gradients.push_back(GradientOf(inputs[i]));
    }
    GradientCheck arguments;
    arguments.count = static_cast<std::int64_t>(gradients.size());
    arguments.gradients = gradients.data();
    arguments.scale = inputs[0].As<float>();
    arguments.largest = outputs[outputs.size() - 2].As<float>();
    float* const sum_of_squares = outputs.back().As<float>();
    if (compute_sum_of_squares_) {
      arguments.sum_of_squares = sum_of_squares;
    } else if (const Status status = device.SetZero(sum_of_squares); !status.ok()) {
      return status;
    }
    return check(arguments);
  }

 private:
  bool compute_sum_of_squares_ = false;
};

class CheckGradientsOp : public GradientOp {
 public:
  static constexpr char kName[] = "KerasMp>CheckGradients";
  static constexpr char kCall[] = "keras_mp.check_gradients";

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs));
    Views outputs;
    AddLastOutputs(inputs, &outputs);
    return outputs;
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    return WithArguments(device, inputs, outputs, [&](const GradientCheck& arguments) {
      if constexpr (Device::kIsCpu) {
        return CheckGradientsCpu(arguments, device.threads());
      } else {
        return device.WithWorkspace(
            CheckWorkspaceBytes(arguments), [&](void* workspace) {
              return CheckGradientsCuda(arguments, workspace, device.stream());
            });
      }
    });
  }
};

// The first outputs: the un-scaled gradients.
class UnscaleGradientsOp : public GradientOp {
 public:
  static constexpr char kName[] = "KerasMp>UnscaleGradients";
  static constexpr char kCall[] = "keras_mp.unscale_gradients";

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("count", &count_));
    const int gradients = ctx->num_inputs() - 1;
    if (count_ == gradients) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("there must be a result for each gradient. Received: ", gradients,
                     " gradients, count=", count_));
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs));
    Views outputs;
    outputs.reserve(inputs.size() + 1);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      outputs.push_back({tensorflow::DT_FLOAT, inputs[i].shape});
    }
    AddLastOutputs(inputs, &outputs);
    return outputs;
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    std::vector<float*> to;
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      to.push_back(outputs[i - 1].As<float>());
    }
    return WithArguments(device, inputs, outputs, [&](const GradientCheck& arguments) {
      if constexpr (Device::kIsCpu) {
        return UnscaleGradientsCpu(arguments, to.data(), device.threads());
      } else {
        return device.WithWorkspace(
            CheckWorkspaceBytes(arguments), [&](void* workspace) {
              return UnscaleGradientsCuda(arguments, to.data(), workspace,
                                          device.stream());
            });
      }
    });
  }

  int ForwardedInput(int output) const { return output < count_ ? 1 + output : -1; }

 private:
  int count_ = 0;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_GRADIENT_OPS_H_
