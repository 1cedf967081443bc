// The ops of the update step on a CPU: update_cpu.h on TensorFlow's threads.

#include <numeric>
#include <vector>

#include "cpu_threads.h"
#include "keras_mp/update_cpu.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "update_arguments.h"
#include "variables.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

Gradient AsGradient(const Tensor& tensor) {
  Gradient gradient;
  gradient.size = tensor.NumElements();
  gradient.type = TypeOf(tensor.dtype());
  gradient.values = tensor.data();
  return gradient;
}

absl::Status Misfit(const char* what, int i, const Tensor& tensor, const Tensor& master) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", i, " must fit the master, which is float32. Received: ",
      tensor.DebugString(0), " for ", master.DebugString(0)));
}

// The pair of the i-th master and its weight.
absl::Status MakePair(int i, Tensor& master, Tensor* weight, MasterPair* pair) {
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
    check.scale = ctx->input(0).scalar<float>()();
    check.overflows = overflows->flat<bool>().data();
    return check;
  }
};

class CheckGradientsCpuOp : public GradientOp {
 public:
  explicit CheckGradientsCpuOp(OpKernelConstruction* ctx) : GradientOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sums_squares", &sums_squares_));
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor *overflows, *sum;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {ctx->num_inputs() - 1}, &overflows));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {}, &sum));
    std::vector<Gradient> gradients;
    GradientCheck check = MakeCheck(ctx, &gradients, overflows);
    double squares = 0;
    if (sums_squares_) check.squares = &squares;
    OP_REQUIRES_OK(ctx, ToAbsl(CheckGradientsCpu(check, CpuThreads(ctx))));
    sum->scalar<float>()() = static_cast<float>(squares);
  }

 private:
  bool sums_squares_;
};

class UnscaleGradientsCpuOp : public GradientOp {
 public:
  using GradientOp::GradientOp;

  void Compute(OpKernelContext* ctx) override {
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
    OP_REQUIRES_OK(
        ctx, ToAbsl(UnscaleGradientsCpu(check, unscaled.data(), CpuThreads(ctx))));
  }
};

// What both ops on masters and their weights share: inputs [masters, weights, ...].
class PairsOp : public tensorflow::OpKernel {
 public:
  explicit PairsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
  }

 protected:
  absl::Status MakePairs(OpKernelContext* ctx, LockedVariables* variables,
                         std::vector<MasterPair>* pairs) const {
    std::vector<int> inputs;
    for (int i = 0; i < 2 * count_; ++i) inputs.push_back(i);
    TF_RETURN_IF_ERROR(variables->Lock(ctx, inputs));
    pairs->resize(count_);
    for (int i = 0; i < count_; ++i) {
      TF_RETURN_IF_ERROR(MakePair(i, (*variables)[i], &(*variables)[count_ + i],
                                  &(*pairs)[i]));
    }
    return absl::OkStatus();
  }

  int count_;
};

class FollowWeightsCpuOp : public PairsOp {
 public:
  explicit FollowWeightsCpuOp(OpKernelConstruction* ctx) : PairsOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_stochastic", &is_stochastic_));
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, MakePairs(ctx, &variables, &pairs));
    const auto rounding = is_stochastic_ ? Rounding::kStochastic : Rounding::kNearest;
    OP_REQUIRES_OK(ctx, ToAbsl(FollowWeightsCpu(pairs.data(), count_, rounding,
                                                CpuThreads(ctx))));
  }

 private:
  bool is_stochastic_;
};

class CastMastersCpuOp : public PairsOp {
 public:
  using PairsOp::PairsOp;

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, MakePairs(ctx, &variables, &pairs));
    std::vector<const float*> uniforms;
    for (int i = 2 * count_; i < ctx->num_inputs(); ++i) {
      const Tensor& uniform = ctx->input(i);
      Tensor& master = variables[i - 2 * count_];
      OP_REQUIRES(ctx, uniform.shape() == master.shape(),
                  Misfit("uniform", i - 2 * count_, uniform, master));
      uniforms.push_back(uniform.flat<float>().data());
    }
    const float* const* given = uniforms.empty() ? nullptr : uniforms.data();
    OP_REQUIRES_OK(ctx, ToAbsl(CastMastersCpu(pairs.data(), count_, given,
                                              CpuThreads(ctx))));
  }
};

class UpdateVariablesCpuOp : public tensorflow::OpKernel {
 public:
  explicit UpdateVariablesCpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, arguments_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    if (!ctx->input(UpdateArguments::kFinite).scalar<bool>()()) return;
    const Tensor& numbers = ctx->input(UpdateArguments::kNumbers);
    OP_REQUIRES(ctx, numbers.NumElements() == UpdateArguments::kNumberCount,
                absl::InvalidArgumentError(absl::StrCat(
                    "there must be ", UpdateArguments::kNumberCount,
                    " numbers. Received: ", numbers.DebugString())));
    std::vector<int> inputs(arguments_.end_of_variables() - arguments_.first_variable());
    std::iota(inputs.begin(), inputs.end(), arguments_.first_variable());
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, variables.Lock(ctx, inputs));
    std::vector<Parameter> parameters(arguments_.count());
    for (int i = 0; i < arguments_.count(); ++i) {
      OP_REQUIRES_OK(ctx, MakeParameter(ctx, i, &variables, &parameters[i]));
    }
    Update update;
    update.count = arguments_.count();
    update.parameters = parameters.data();
    update.numbers = arguments_.Numbers(numbers.flat<float>().data());
    if (arguments_.is_stochastic()) update.rounding = Rounding::kStochastic;
    OP_REQUIRES_OK(ctx, ToAbsl(UpdateCpu(update, CpuThreads(ctx))));
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
    for (int k = 0; k < 2; ++k) {
      const int input = arguments_.slot(k, i);
      if (input < 0) continue;
      Tensor& slot = (*variables)[input];
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

REGISTER_KERNEL_BUILDER(
    Name("KerasMp>CheckGradients").Device(tensorflow::DEVICE_CPU), CheckGradientsCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>UnscaleGradients").Device(tensorflow::DEVICE_CPU),
    UnscaleGradientsCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>FollowWeights").Device(tensorflow::DEVICE_CPU), FollowWeightsCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>CastMasters").Device(tensorflow::DEVICE_CPU), CastMastersCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>UpdateVariables").Device(tensorflow::DEVICE_CPU), UpdateVariablesCpuOp);

}  // namespace
}  // namespace keras_mp
