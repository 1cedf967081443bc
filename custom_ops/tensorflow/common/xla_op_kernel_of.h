// The XlaOpKernels of an op's class, which make its checks: XlaOpKernelOf compiles to an
// XLA call of the kernel that the op runs outside of XLA, LoweringOf to XLA's operations.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_OP_KERNEL_OF_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_OP_KERNEL_OF_H_

#include <set>

#include "common/locked_variables.h"
#include "common/tensor_view.h"
#include "common/visit_attributes.h"
#include "common/xla_custom_call.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace keras_mp {

// The inputs, of which [first, end) are variables, in their largest sizes.
inline absl::StatusOr<Views> ViewsOfInputs(tensorflow::XlaOpKernelContext* ctx, int first,
                                           int end) {
  Views views(ctx->num_inputs());
  std::set<const tensorflow::XlaResource*> seen;
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    if (i < first || i >= end) {
      views[i].dtype = ctx->input_type(i);
      const auto shape = ctx->InputXlaShape(i);
      TF_RETURN_IF_ERROR(shape.status());
      TF_RETURN_IF_ERROR(tensorflow::XLAShapeToTensorShape(*shape, &views[i].shape));
      continue;
    }
    tensorflow::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(ctx->GetResourceInput(i, &resource));
    if (!seen.insert(resource).second) return DuplicateVariable();
    TF_RETURN_IF_ERROR(
        ctx->GetVariableTypeAndShape(i, &views[i].dtype, &views[i].shape));
  }
  return views;
}

template <class Op>
class XlaOpKernelOf : public tensorflow::XlaOpKernel {
 public:
  explicit XlaOpKernelOf(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &op_));
  }

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Call(ctx));
  }

 private:
  absl::Status Call(tensorflow::XlaOpKernelContext* ctx) {
    const auto [first, end] = op_.Variables();
    auto inputs = ViewsOfInputs(ctx, first, end);
    TF_RETURN_IF_ERROR(inputs.status());
    const auto outputs = op_.Outputs(*inputs);
    TF_RETURN_IF_ERROR(outputs.status());
    CustomCall call(ctx->builder());
    xla::XlaOp batch;  // its size, where that is dynamic
    for (int i = Op::kShapeInputs; i < ctx->num_inputs(); ++i) {
      xla::XlaOp operand;
      if (first <= i && i < end) {
        TensorView& variable = (*inputs)[i];
        TF_RETURN_IF_ERROR(
            ctx->ReadVariableInput(i, variable.dtype, &variable.shape, &operand));
        TF_RETURN_IF_ERROR(call.AddVariable(operand));
      } else {
        operand = ctx->Input(i);
        TF_RETURN_IF_ERROR(MakeStatic(Op::kName, op_.HasBatch(i), &operand, &batch));
        call.AddOperand(operand);
      }
    }
    for (const TensorView& output : *outputs) {
      xla::PrimitiveType type;
      TF_RETURN_IF_ERROR(tensorflow::DataTypeToPrimitiveType(output.dtype, &type));
      const auto sizes = output.shape.dim_sizes();
      call.AddResult(type, {sizes.begin(), sizes.end()});
    }
    ToCall attributes;
    op_.Visit(attributes);
    const auto results = call.Make(Op::kCall, attributes.text());
    TF_RETURN_IF_ERROR(results.status());
    for (int i = first; i < end; ++i) {
      TF_RETURN_IF_ERROR(
          ctx->AssignVariable(i, (*inputs)[i].dtype, (*results)[i - first]));
    }
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      const xla::XlaOp result = (*results)[end - first + i];
      ctx->SetOutput(i, op_.ResultHasBatch(i) ? MakeDynamic(result, batch) : result);
    }
    return absl::OkStatus();
  }

  Op op_;
};

template <class Op>
class LoweringOf : public tensorflow::XlaOpKernel {
 public:
  explicit LoweringOf(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &op_));
  }

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    auto inputs = ViewsOfInputs(ctx, 0, 0);
    OP_REQUIRES_OK(ctx, inputs.status());
    xla::Literal numbers;
    if constexpr (Op::kConstantInput >= 0) {
      OP_REQUIRES_OK(ctx, ctx->ConstantInput(Op::kConstantInput, &numbers));
      (*inputs)[Op::kConstantInput].data = numbers.untyped_data();
    }
    const auto outputs = op_.Outputs(*inputs);
    OP_REQUIRES_OK(ctx, outputs.status());
    Lower(ctx, *inputs, *outputs);
  }

 protected:
  // Sets the outputs, of inputs that fit. The views have the largest sizes.
  virtual void Lower(tensorflow::XlaOpKernelContext* ctx, const Views& inputs,
                     const Views& outputs) = 0;

  const Op& op() const { return op_; }

 private:
  Op op_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_OP_KERNEL_OF_H_
