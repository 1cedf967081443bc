// The XlaOpKernels of the update ops: each compiles to one XLA custom call of a handler
// in update/xla_ffi_handlers.h, which runs the same kernel as the op outside of XLA. A
// variable that the kernel writes to is an operand, and a result in the same memory.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/xla_custom_call.h"
#include "keras_mp/update.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "update/arguments.h"
#include "update/xla_call_names.h"
#include "xla/hlo/builder/xla_builder.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

absl::Status ShapeOfInput(XlaOpKernelContext* ctx, int input, TensorShape* shape) {
  const auto found = ctx->InputXlaShape(input);
  TF_RETURN_IF_ERROR(found.status());
  return tensorflow::XLAShapeToTensorShape(*found, shape);
}

absl::Status CheckScalarInput(XlaOpKernelContext* ctx, int input, const char* name) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(ShapeOfInput(ctx, input, &shape));
  return CheckScalar(name, shape);
}

// The base of both ops on gradients: inputs [scale, gradients...], and the last outputs
// [largest, sum_of_squares].
class GradientXlaOp : public tensorflow::XlaOpKernel {
 public:
  explicit GradientXlaOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("compute_sum_of_squares", &compute_sum_of_squares_));
  }

 protected:
  // Adds the operands, and the results after those that the call has.
  void Complete(XlaOpKernelContext* ctx, const char* target, CustomCall* call) const {
    OP_REQUIRES_OK(ctx, CheckScalarInput(ctx, 0, "scale"));
    for (int i = 0; i < ctx->num_inputs(); ++i) call->AddOperand(ctx->Input(i));
    call->AddResult(xla::F32, {ctx->num_inputs() - 1});
    call->AddResult(xla::F32, {});
    const auto results = call->Make(
        target, Attribute("compute_sum_of_squares", compute_sum_of_squares_));
    OP_REQUIRES_OK(ctx, results.status());
    for (int i = 0; i < ctx->num_outputs(); ++i) ctx->SetOutput(i, (*results)[i]);
  }

 private:
  bool compute_sum_of_squares_;
};

class CheckGradientsXlaOp : public GradientXlaOp {
 public:
  using GradientXlaOp::GradientXlaOp;

  void Compile(XlaOpKernelContext* ctx) override {
    CustomCall call(ctx->builder());
    Complete(ctx, kCheckGradientsCall, &call);
  }
};

class UnscaleGradientsXlaOp : public GradientXlaOp {
 public:
  explicit UnscaleGradientsXlaOp(OpKernelConstruction* ctx) : GradientXlaOp(ctx) {
    int count;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count));
    OP_REQUIRES_OK(ctx, CheckResultCount(ctx->num_inputs() - 1, count));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    CustomCall call(ctx->builder());
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      TensorShape shape;
      OP_REQUIRES_OK(ctx, ShapeOfInput(ctx, i, &shape));
      const auto sizes = shape.dim_sizes();
      call.AddResult(xla::F32, {sizes.begin(), sizes.end()});
    }
    Complete(ctx, kUnscaleGradientsCall, &call);
  }
};

// Gets the specs of all inputs, of which [first, end) are handles of variables.
absl::Status SpecsOfInputs(XlaOpKernelContext* ctx, int first, int end,
                           std::vector<TensorSpec>* specs) {
  specs->resize(ctx->num_inputs());
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    TensorSpec& spec = (*specs)[i];
    if (first <= i && i < end) {
      TF_RETURN_IF_ERROR(ctx->GetVariableTypeAndShape(i, &spec.dtype, &spec.shape));
    } else {
      spec.dtype = ctx->input_type(i);
      TF_RETURN_IF_ERROR(ShapeOfInput(ctx, i, &spec.shape));
    }
  }
  return absl::OkStatus();
}

// Returns an error where two of the inputs [first, end) are handles of one variable.
absl::Status CheckDistinct(XlaOpKernelContext* ctx, int first, int end) {
  std::set<const tensorflow::XlaResource*> seen;
  for (int i = first; i < end; ++i) {
    tensorflow::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(ctx->GetResourceInput(i, &resource));
    if (!seen.insert(resource).second) return DuplicateVariable();
  }
  return absl::OkStatus();
}

// Adds all inputs as operands. The variables [first, end) become results, too.
absl::Status AddInputs(XlaOpKernelContext* ctx, int first, int end,
                       std::vector<TensorSpec>& specs, CustomCall* call) {
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    if (i < first || i >= end) {
      call->AddOperand(ctx->Input(i));
      continue;
    }
    XlaOp value;
    TF_RETURN_IF_ERROR(
        ctx->ReadVariableInput(i, specs[i].dtype, &specs[i].shape, &value));
    TF_RETURN_IF_ERROR(call->AddVariable(value));
  }
  return absl::OkStatus();
}

// Assigns the results to the variables [first, end).
absl::Status Assign(XlaOpKernelContext* ctx, int first, int end,
                    const std::vector<TensorSpec>& specs,
                    const absl::StatusOr<std::vector<XlaOp>>& results) {
  TF_RETURN_IF_ERROR(results.status());
  for (int i = first; i < end; ++i) {
    TF_RETURN_IF_ERROR(
        ctx->AssignVariable(i, specs[i].dtype, (*results)[i - first]));
  }
  return absl::OkStatus();
}

// The base of both ops on masters and their weights: inputs [masters, weights, ...].
class PairsXlaOp : public tensorflow::XlaOpKernel {
 public:
  explicit PairsXlaOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const int end = 2 * count_;
    OP_REQUIRES_OK(ctx, CheckDistinct(ctx, 0, end));
    std::vector<TensorSpec> specs;
    OP_REQUIRES_OK(ctx, SpecsOfInputs(ctx, 0, end, &specs));
    OP_REQUIRES_OK(ctx, CheckPairs(specs, count_));
    CustomCall call(ctx->builder());
    OP_REQUIRES_OK(ctx, AddInputs(ctx, 0, end, specs, &call));
    OP_REQUIRES_OK(ctx, Assign(ctx, 0, end, specs, call.Make(target(), attributes())));
  }

 protected:
  virtual const char* target() const = 0;
  virtual std::string attributes() const = 0;

  int count_;
};

class SyncMastersFromWeightsXlaOp : public PairsXlaOp {
 public:
  explicit SyncMastersFromWeightsXlaOp(OpKernelConstruction* ctx) : PairsXlaOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_stochastic", &is_stochastic_));
  }

 private:
  const char* target() const override { return kSyncMastersFromWeightsCall; }
  std::string attributes() const override {
    return Attribute("is_stochastic", is_stochastic_);
  }

  bool is_stochastic_;
};

class CastMastersXlaOp : public PairsXlaOp {
 public:
  explicit CastMastersXlaOp(OpKernelConstruction* ctx) : PairsXlaOp(ctx) {
    int uniform_count;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("uniform_count", &uniform_count));
    OP_REQUIRES_OK(ctx, CheckUniformCount(ctx));
    is_stochastic_ = uniform_count > 0;
  }

 private:
  const char* target() const override { return kCastMastersCall; }
  std::string attributes() const override {
    return Attribute("is_stochastic", is_stochastic_);
  }

  bool is_stochastic_;
};

class UpdateVariablesXlaOp : public tensorflow::XlaOpKernel {
 public:
  explicit UpdateVariablesXlaOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, arguments_.Read(ctx));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const int first = arguments_.first_variable(), end = arguments_.end_of_variables();
    OP_REQUIRES_OK(ctx, CheckDistinct(ctx, first, end));
    std::vector<TensorSpec> specs;
    OP_REQUIRES_OK(ctx, SpecsOfInputs(ctx, first, end, &specs));
    OP_REQUIRES_OK(ctx, arguments_.CheckInputs(specs));
    CustomCall call(ctx->builder());
    OP_REQUIRES_OK(ctx, AddInputs(ctx, first, end, specs, &call));
    const std::string attributes = absl::StrJoin(
        {absl::StrCat("rule = ", static_cast<int>(arguments_.rule()), " : i64"),
         Attribute("is_stochastic", arguments_.is_stochastic()),
         Attribute("weight_of", arguments_.weight_of()),
         Attribute("exponent_of", arguments_.exponent_of()),
         absl::StrCat("code_bits = ", arguments_.code_bits(), " : i64"),
         Attribute("power_of", arguments_.power_of()),
         Attribute("apply_weight_decay", arguments_.apply_weight_decay())},
        ", ");
    const auto results = call.Make(kUpdateVariablesCall, attributes);
    OP_REQUIRES_OK(ctx, Assign(ctx, first, end, specs, results));
  }

 private:
  UpdateArguments arguments_;
};

#define KERAS_MP_REGISTER_ON(device, name) \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device(device), name##XlaOp)
#define KERAS_MP_REGISTER_ALL_ON(device)            \
  KERAS_MP_REGISTER_ON(device, CheckGradients);     \
  KERAS_MP_REGISTER_ON(device, UnscaleGradients);   \
  KERAS_MP_REGISTER_ON(device, SyncMastersFromWeights);      \
  KERAS_MP_REGISTER_ON(device, CastMasters);        \
  KERAS_MP_REGISTER_ON(device, UpdateVariables)

KERAS_MP_REGISTER_ALL_ON("XLA_CPU_JIT");
#ifdef KERAS_MP_HAS_CUDA
KERAS_MP_REGISTER_ALL_ON("XLA_GPU_JIT");
#endif

#undef KERAS_MP_REGISTER_ALL_ON
#undef KERAS_MP_REGISTER_ON

}  // namespace
}  // namespace keras_mp
