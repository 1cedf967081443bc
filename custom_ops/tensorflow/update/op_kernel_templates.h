// The OpKernels of the update ops, as class templates. `Backend` computes: a subclass of
// CpuBackend or CudaBackend that is constructed from an OpKernelContext.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_
#define KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keras_mp/update.h"
#include "common/locked_variables.h"
#include "common/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "update/arguments.h"

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

// `weight`: null where the master is a weight itself.
inline MasterPair AsPair(Tensor& master, Tensor* weight) {
  MasterPair pair;
  pair.size = master.NumElements();
  if (master.dtype() == tensorflow::DT_FLOAT) {
    pair.master = master.flat<float>().data();
  } else if (master.dtype() == tensorflow::DT_INT16) {
    pair.remainder = master.flat<std::int16_t>().data();
  } else if (master.dtype() == tensorflow::DT_INT8) {
    pair.short_remainder = master.flat<std::int8_t>().data();
  } else {
    weight = &master;
  }
  if (weight == nullptr) return pair;
  pair.type = TypeOf(weight->dtype());
  pair.weight = static_cast<std::uint16_t*>(weight->data());
  return pair;
}

// `exponents`: null where the slot is FP32.
inline Slot AsSlot(Tensor& values, Tensor* exponents, std::int64_t code_bits) {
  Slot slot;
  if (exponents == nullptr) {
    slot.values = values.flat<float>().data();
  } else {
    auto& codes = code_bits == 8 ? slot.codes : slot.pairs;
    codes = values.flat<std::uint8_t>().data();
    slot.exponents = exponents->flat<std::uint8_t>().data();
  }
  return slot;
}

// Locks the variables whose handles are the inputs [first, end).
template <class Backend>
absl::Status LockInputs(OpKernelContext* ctx, const Backend& backend, int first, int end,
                        LockedVariables* variables) {
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    return backend.Copy(to, from, bytes);
  };
  return variables->Lock(ctx, first, end, copy);
}

// The specs of all inputs, of which [first, end) are handles of locked variables.
inline std::vector<TensorSpec> SpecsOfInputs(OpKernelContext* ctx, int first, int end,
                                             LockedVariables* variables) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    const bool is_variable = first <= i && i < end;
    const Tensor& tensor = is_variable ? (*variables)[i] : ctx->input(i);
    specs.push_back({tensor.dtype(), tensor.shape()});
  }
  return specs;
}

// The base of both ops on gradients: inputs [scale, gradients...], and the last outputs
// [largest, sum_of_squares].
template <class Backend>
class GradientOp : public tensorflow::OpKernel {
 public:
  explicit GradientOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("compute_sum_of_squares", &compute_sum_of_squares_));
  }

 protected:
  // Allocates the last outputs, and sets a sum that is not computed to 0.
  absl::Status MakeCheck(OpKernelContext* ctx, const Backend& backend,
                         std::vector<Gradient>* gradients, GradientCheck* check) const {
    TF_RETURN_IF_ERROR(CheckScalar("scale", ctx->input(0).shape()));
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      gradients->push_back(AsGradient(ctx->input(i)));
    }
    const auto count = static_cast<std::int64_t>(gradients->size());
    Tensor *largest, *sum;
    const int last = ctx->num_outputs() - 1;
    TF_RETURN_IF_ERROR(ctx->allocate_output(last - 1, {count}, &largest));
    TF_RETURN_IF_ERROR(ctx->allocate_output(last, {}, &sum));
    check->count = count;
    check->gradients = gradients->data();
    check->scale = ctx->input(0).flat<float>().data();
    check->largest = largest->flat<float>().data();
    float* const sum_of_squares = sum->flat<float>().data();
    if (!compute_sum_of_squares_) return ToAbsl(backend.SetZero(sum_of_squares));
    check->sum_of_squares = sum_of_squares;
    return absl::OkStatus();
  }

 private:
  bool compute_sum_of_squares_;
};

template <class Backend>
class CheckGradientsOp : public GradientOp<Backend> {
 public:
  using GradientOp<Backend>::GradientOp;

  void Compute(OpKernelContext* ctx) override {
    const Backend backend(ctx);
    std::vector<Gradient> gradients;
    GradientCheck check;
    OP_REQUIRES_OK(ctx, this->MakeCheck(ctx, backend, &gradients, &check));
    OP_REQUIRES_OK(ctx, ToAbsl(backend.Check(check)));
  }
};

template <class Backend>
class UnscaleGradientsOp : public GradientOp<Backend> {
 public:
  explicit UnscaleGradientsOp(OpKernelConstruction* ctx) : GradientOp<Backend>(ctx) {
    int count;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count));
    OP_REQUIRES_OK(ctx, CheckResultCount(ctx->num_inputs() - 1, count));
  }

  void Compute(OpKernelContext* ctx) override {
    const Backend backend(ctx);
    const int count = ctx->num_inputs() - 1;
    std::vector<Gradient> gradients;
    GradientCheck check;
    OP_REQUIRES_OK(ctx, this->MakeCheck(ctx, backend, &gradients, &check));
    std::vector<float*> unscaled;
    for (int i = 0; i < count; ++i) {
      Tensor* tensor;
      OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                              {1 + i}, i, ctx->input(1 + i).shape(), &tensor));
      unscaled.push_back(tensor->flat<float>().data());
    }
    OP_REQUIRES_OK(ctx, ToAbsl(backend.Unscale(check, unscaled.data())));
  }
};

// The base of both ops on masters and their weights: inputs [masters, weights, ...].
template <class Backend>
class PairsOp : public tensorflow::OpKernel {
 public:
  explicit PairsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
  }

 protected:
  absl::Status MakePairs(OpKernelContext* ctx, const Backend& backend,
                         LockedVariables* variables,
                         std::vector<MasterPair>* pairs) const {
    const int end = 2 * count_;
    TF_RETURN_IF_ERROR(LockInputs(ctx, backend, 0, end, variables));
    TF_RETURN_IF_ERROR(CheckPairs(SpecsOfInputs(ctx, 0, end, variables), count_));
    for (int i = 0; i < count_; ++i) {
      pairs->push_back(AsPair((*variables)[i], &(*variables)[count_ + i]));
    }
    return absl::OkStatus();
  }

  int count_;
};

template <class Backend>
class SyncMastersFromWeightsOp : public PairsOp<Backend> {
 public:
  explicit SyncMastersFromWeightsOp(OpKernelConstruction* ctx) : PairsOp<Backend>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_stochastic", &is_stochastic_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Backend backend(ctx);
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, this->MakePairs(ctx, backend, &variables, &pairs));
    const auto rounding = is_stochastic_ ? Rounding::kStochastic : Rounding::kNearest;
    OP_REQUIRES_OK(
        ctx, ToAbsl(backend.SyncMasters(pairs.data(), this->count_, rounding)));
  }

 private:
  bool is_stochastic_;
};

template <class Backend>
class CastMastersOp : public PairsOp<Backend> {
 public:
  explicit CastMastersOp(OpKernelConstruction* ctx) : PairsOp<Backend>(ctx) {
    OP_REQUIRES_OK(ctx, CheckUniformCount(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Backend backend(ctx);
    const int count = this->count_;
    LockedVariables variables;
    std::vector<MasterPair> pairs;
    OP_REQUIRES_OK(ctx, this->MakePairs(ctx, backend, &variables, &pairs));
    std::vector<const float*> uniforms;
    for (int i = 2 * count; i < ctx->num_inputs(); ++i) {
      uniforms.push_back(ctx->input(i).flat<float>().data());
    }
    const float* const* given = uniforms.empty() ? nullptr : uniforms.data();
    OP_REQUIRES_OK(ctx, ToAbsl(backend.Cast(pairs.data(), count, given)));
  }
};

template <class Backend>
class UpdateVariablesOp : public tensorflow::OpKernel {
 public:
  explicit UpdateVariablesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, arguments_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Backend backend(ctx);
    LockedVariables variables;
    const int first = arguments_.first_variable(), end = arguments_.end_of_variables();
    OP_REQUIRES_OK(ctx, LockInputs(ctx, backend, first, end, &variables));
    OP_REQUIRES_OK(
        ctx, arguments_.CheckInputs(SpecsOfInputs(ctx, first, end, &variables)));
    std::vector<Parameter> parameters;
    std::vector<Matrices> matrices;
    for (int i = 0; i < arguments_.count(); ++i) {
      parameters.push_back(MakeParameter(ctx, i, variables));
      const Tensor& gradient = ctx->input(arguments_.gradient(i));
      matrices.push_back(MatricesOf(gradient.shape().dim_sizes()));
    }
    Update update;
    update.count = arguments_.count();
    update.parameters = parameters.data();
    update.matrices = matrices.data();
    update.rule = arguments_.rule();
    if (arguments_.is_stochastic()) update.rounding = Rounding::kStochastic;
    update.hyperparameters = static_cast<const UpdateHyperparameters*>(
        ctx->input(UpdateArguments::kHyperparameters).data());
    update.finite = ctx->input(UpdateArguments::kFinite).flat<bool>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(backend.Update(update)));
  }

 private:
  Parameter MakeParameter(OpKernelContext* ctx, int i, LockedVariables& variables) const {
    Parameter parameter;
    parameter.gradient = AsGradient(ctx->input(arguments_.gradient(i)));
    for (int k = 0; k < arguments_.slots(); ++k) {
      const int exponents = arguments_.exponents(k, i);
      const Tensor& values = variables[arguments_.slot(k, i)];
      if (exponents < 0 && values.dtype() != tensorflow::DT_FLOAT) continue;  // no use
      parameter.slots[k] = AsSlot(variables[arguments_.slot(k, i)],
                                  exponents < 0 ? nullptr : &variables[exponents],
                                  arguments_.code_bits());
    }
    parameter.apply_weight_decay = arguments_.apply_weight_decay()[i] != 0;
    const int weight = arguments_.weight(i), uniform = arguments_.uniform(i);
    const int powers = arguments_.powers(i);
    parameter.pair = AsPair(variables[arguments_.master(i)],
                            weight < 0 ? nullptr : &variables[weight]);
    if (uniform >= 0) parameter.uniforms = ctx->input(uniform).flat<float>().data();
    if (powers >= 0) parameter.powers = ctx->input(powers).flat<float>().data();
    return parameter;
  }

  UpdateArguments arguments_;
};

}  // namespace keras_mp::update_op

#endif  // KERAS_MP_TENSORFLOW_UPDATE_OP_KERNEL_TEMPLATES_H_
