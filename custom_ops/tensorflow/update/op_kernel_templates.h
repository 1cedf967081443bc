// The kernels of the ops of the update step. `Device` computes, in an OpKernelContext:
// UpdateOnCpu or UpdateOnCuda, made for it.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_
#define KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "keras_mp/update.h"
#include "common/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "update/arguments.h"
#include "update/locked_variables.h"

namespace keras_mp::update_op {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

inline Gradient AsGradient(const Tensor& tensor) {
  Gradient gradient;
  gradient.size = tensor.NumElements();
  gradient.type = TypeOf(tensor.dtype());
  gradient.values = tensor.data();
  return gradient;
}

inline absl::Status Misfit(const char* what, int i, const Tensor& tensor,
                           const Tensor& master) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", i, " must fit the master, which is float32. Received: ",
      tensor.DebugString(0), " for ", master.DebugString(0)));
}

// The pair of the i-th master and its weight.
inline absl::Status MakePair(int i, Tensor& master, Tensor* weight, MasterPair* pair) {
  if (master.dtype() != tensorflow::DT_FLOAT) return Misfit("master", i, master, master);
  pair->size = master.NumElements();
  pair->master = master.flat<float>().data();
  if (weight == nullptr) return absl::OkStatus();
  const auto dtype = weight->dtype();
  if ((dtype != tensorflow::DT_HALF && dtype != tensorflow::DT_BFLOAT16) ||
      weight->shape() != master.shape()) {
    return Misfit("weight", i, *weight, master);
  }
  pair->type = TypeOf(dtype);
  pair->weight = static_cast<std::uint16_t*>(weight->data());
  return absl::OkStatus();
}

// Locks the variables behind the inputs [first, end).
template <class Device>
absl::Status LockInputs(OpKernelContext* ctx, const Device& device, int first, int end,
                        LockedVariables* variables) {
  std::vector<int> inputs(end - first);
  std::iota(inputs.begin(), inputs.end(), first);
  return variables->Lock(ctx, inputs, [&](void* to, const void* from, std::size_t bytes) {
    return device.Copy(to, from, bytes);
  });
}

inline absl::Status ExpectScalar(OpKernelContext* ctx, int input, const char* what) {
  const tensorflow::TensorShape& shape = ctx->input(input).shape();
  if (shape.dims() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " must be a scalar. Received: a tensor of shape ", shape.DebugString()));
}

// What both ops on gradients share: the check of all inputs from the second on.
class GradientOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

 protected:
  GradientCheck MakeCheck(OpKernelContext* ctx, std::vector<Gradient>* gradients,
                          Tensor* overflows) const {
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      gradients->push_back(AsGradient(ctx->input(i)));
    }
    GradientCheck check;
    check.count = static_cast<std::int64_t>(gradients->size());
    check.gradients = gradients->data();
    check.scale = ctx->input(0).flat<float>().data();
    check.overflows = overflows->flat<bool>().data();
    return check;
  }
};

template <class Device>
class CheckGradientsOp : public GradientOp {
 public:
  explicit CheckGradientsOp(OpKernelConstruction* ctx) : GradientOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sums_squares", &sums_squares_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx, 0, "scale"));
    Tensor *overflows, *sum;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {ctx->num_inputs() - 1}, &overflows));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {}, &sum));
    std::vector<Gradient> gradients;
    GradientCheck check = MakeCheck(ctx, &gradients, overflows);
    const Device device(ctx);
    float* const squares = sum->flat<float>().data();
    if (sums_squares_) {
      check.squares = squares;
    } else {
      OP_REQUIRES_OK(ctx, ToAbsl(device.SetZero(squares)));
    }
    OP_REQUIRES_OK(ctx, ToAbsl(device.Check(check)));
  }

 private:
  bool sums_squares_;
};

template <class Device>
class UnscaleGradientsOp : public GradientOp {
 public:
  explicit UnscaleGradientsOp(OpKernelConstruction* ctx) : GradientOp(ctx) {
    OP_REQUIRES_OK(ctx, CheckResultCount(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx, 0, "scale"));
    const int count = ctx->num_inputs() - 1;
    std::vector<Gradient> gradients;
    Tensor* overflows;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(count, {count}, &overflows));
    const GradientCheck check = MakeCheck(ctx, &gradients, overflows);
    std::vector<float*> unscaled;
    for (int i = 0; i < count; ++i) {
      Tensor* tensor;
      OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                              {1 + i}, i, ctx->input(1 + i).shape(), &tensor));
      unscaled.push_back(tensor->flat<float>().data());
    }
    OP_REQUIRES_OK(ctx, ToAbsl(Device(ctx).Unscale(check, unscaled.data())));
  }
};

// What both ops on masters and their weights share: inputs [masters, weights, ...].
template <class Device>
class PairsOp : public tensorflow::OpKernel {
 public:
  explicit PairsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
  }

 protected:
  absl::Status MakePairs(OpKernelContext* ctx, const Device& device,
                         LockedVariables* variables,
                         std::vector<MasterPair>* pairs) const {
    TF_RETURN_IF_ERROR(LockInputs(ctx, device, 0, 2 * count_, variables));
    pairs->resize(count_);
    for (int i = 0; i < count_; ++i) {
      TF_RETURN_IF_ERROR(MakePair(i, (*variables)[i], &(*variables)[count_ + i],
                                  &(*pairs)[i]));
    }
    return absl::OkStatus();
  }

  int count_;
};

template <class Device>
class FollowWeightsOp : public PairsOp<Device> {
 public:
  explicit FollowWeightsOp(OpKernelConstruction* ctx) : PairsOp<Device>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_stochastic", &is_stochastic_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Device device(ctx);
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, this->MakePairs(ctx, device, &variables, &pairs));
    const auto rounding = is_stochastic_ ? Rounding::kStochastic : Rounding::kNearest;
    OP_REQUIRES_OK(ctx, ToAbsl(device.Follow(pairs.data(), this->count_, rounding)));
  }

 private:
  bool is_stochastic_;
};

template <class Device>
class CastMastersOp : public PairsOp<Device> {
 public:
  explicit CastMastersOp(OpKernelConstruction* ctx) : PairsOp<Device>(ctx) {
    OP_REQUIRES_OK(ctx, CheckUniformCount(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Device device(ctx);
    const int count = this->count_;
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, this->MakePairs(ctx, device, &variables, &pairs));
    std::vector<const float*> uniforms;
    for (int i = 2 * count; i < ctx->num_inputs(); ++i) {
      const Tensor& uniform = ctx->input(i);
      Tensor& master = variables[i - 2 * count];
      OP_REQUIRES(ctx, uniform.shape() == master.shape(),
                  Misfit("uniform", i - 2 * count, uniform, master));
      uniforms.push_back(uniform.flat<float>().data());
    }
    const float* const* given = uniforms.empty() ? nullptr : uniforms.data();
    OP_REQUIRES_OK(ctx, ToAbsl(device.Cast(pairs.data(), count, given)));
  }
};

template <class Device>
class UpdateVariablesOp : public tensorflow::OpKernel {
 public:
  explicit UpdateVariablesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, arguments_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx, UpdateArguments::kFinite, "finite"));
    const Tensor& numbers = ctx->input(UpdateArguments::kNumbers);
    OP_REQUIRES_OK(ctx, UpdateArguments::CheckNumbers(numbers.shape()));
    const Device device(ctx);
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, LockInputs(ctx, device, arguments_.first_variable(),
                                   arguments_.end_of_variables(), &variables));
    std::vector<Parameter> parameters(arguments_.count());
    for (int i = 0; i < arguments_.count(); ++i) {
      OP_REQUIRES_OK(ctx, MakeParameter(ctx, i, &variables, &parameters[i]));
    }
    Update update;
    update.count = arguments_.count();
    update.parameters = parameters.data();
    update.rule = arguments_.rule();
    if (arguments_.is_stochastic()) update.rounding = Rounding::kStochastic;
    update.numbers = static_cast<const UpdateNumbers*>(numbers.data());
    update.finite = ctx->input(UpdateArguments::kFinite).flat<bool>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(device.Update(update)));
  }

 private:
  absl::Status MakeParameter(OpKernelContext* ctx, int i, LockedVariables* variables,
                             Parameter* parameter) const {
    Tensor& master = (*variables)[arguments_.master(i)];
    const Tensor& gradient = ctx->input(arguments_.gradient(i));
    if (gradient.shape() != master.shape()) {
      return Misfit("gradient", i, gradient, master);
    }
    parameter->gradient = AsGradient(gradient);
    parameter->decays = arguments_.decays()[i] != 0;
    for (int k = 0; k < arguments_.slots(); ++k) {
      Tensor& slot = (*variables)[arguments_.slot(k, i)];
      if (slot.shape() != master.shape() || slot.dtype() != master.dtype()) {
        return Misfit("slot", i, slot, master);
      }
      parameter->slots[k] = slot.flat<float>().data();
    }
    if (arguments_.uniform(i) >= 0) {
      const Tensor& uniform = ctx->input(arguments_.uniform(i));
      if (uniform.shape() != master.shape()) return Misfit("uniform", i, uniform, master);
      parameter->uniforms = uniform.flat<float>().data();
    }
    const int weight = arguments_.weight(i);
    return MakePair(i, master, weight < 0 ? nullptr : &(*variables)[weight],
                    &parameter->pair);
  }

  UpdateArguments arguments_;
};

}  // namespace keras_mp::update_op

#endif  // KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_
