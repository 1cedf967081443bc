// The XlaOpKernels of KerasMp>DepthwiseConv and its gradients for a CPU: each compiles to
// one XLA custom call of a handler in conv/depthwise_conv_xla_ffi.cc, which runs the same
// kernel as the op outside of XLA. XLA itself has no kernel for such a convolution.

#include <set>
#include <string>
#include <vector>

#include "common/lowering.h"
#include "common/xla_custom_call.h"
#include "common/xla_dynamic_batch.h"
#include "conv/arguments.h"
#include "conv/xla_call_names.h"
#include "tensorflow/compiler/tf2xla/type_util.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;

class DepthwiseConvXla : public tensorflow::XlaOpKernel {
 public:
  explicit DepthwiseConvXla(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConvAttributes(ctx, &attributes_));
  }

 protected:
  absl::Status MakeConv(const TensorShape& x, const TensorShape& kernel,
                        DepthwiseConv* conv) const {
    // The type of the tensors does not matter here.
    return MakeDepthwiseConv(x, kernel, attributes_, tensorflow::DT_HALF, conv);
  }

  // Calls the handler with the inputs of the op from `first` on. `batches`: those whose
  // first dimension is that of the batch. `has_batch`: whether that of the result is.
  void Call(XlaOpKernelContext* ctx, const char* target, int first,
            const std::set<int>& batches, const TensorShape& result,
            bool has_batch) const {
    CustomCall call(ctx->builder());
    xla::XlaOp dynamic_batch;
    for (int i = first; i < ctx->num_inputs(); ++i) {
      xla::XlaOp operand = ctx->Input(i);
      OP_REQUIRES_OK(ctx, MakeStatic("a depthwise convolution", batches.count(i) > 0,
                                     &operand, &dynamic_batch));
      call.AddOperand(operand);
    }
    xla::PrimitiveType type;
    OP_REQUIRES_OK(ctx, tensorflow::DataTypeToPrimitiveType(ctx->expected_output_dtype(0),
                                                            &type));
    const auto sizes = result.dim_sizes();
    call.AddResult(type, {sizes.begin(), sizes.end()});
    const std::vector<std::string> attributes = {
        Attribute("strides", attributes_.strides),
        Attribute("dilations", attributes_.dilations),
        Attribute("is_same", attributes_.is_same)};
    const auto results = call.Make(target, absl::StrJoin(attributes, ", "));
    OP_REQUIRES_OK(ctx, results.status());
    ctx->SetOutput(0, has_batch ? MakeDynamic((*results)[0], dynamic_batch)
                                : (*results)[0]);
  }

 private:
  ConvAttributes attributes_;
};

class DepthwiseConvXlaOp : public DepthwiseConvXla {
 public:
  using DepthwiseConvXla::DepthwiseConvXla;

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape x, kernel;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, &x));
    OP_REQUIRES_OK(ctx, GetShape(ctx, 1, &kernel));
    std::vector<TensorShape> biases(ctx->num_inputs() - 2);
    std::vector<tensorflow::DataType> types = {ctx->input_type(1),
                                               ctx->expected_output_dtype(0)};
    for (int i = 2; i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_OK(ctx, GetShape(ctx, i, &biases[i - 2]));
      types.push_back(ctx->input_type(i));
    }
    DepthwiseConv conv;
    OP_REQUIRES_OK(ctx, MakeConv(x, kernel, &conv));
    OP_REQUIRES_OK(ctx, CheckBias(conv, biases));
    OP_REQUIRES_OK(ctx, CheckTypes(ctx->input_type(0), types));
    Call(ctx, kDepthwiseConvCall, /*first=*/0, /*batches=*/{0}, ResultShape(conv),
         /*has_batch=*/true);
  }
};

class DepthwiseConvGradXXlaOp : public DepthwiseConvXla {
 public:
  using DepthwiseConvXla::DepthwiseConvXla;

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape x, kernel, grad_y;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, &x));
    OP_REQUIRES_OK(ctx, GetShape(ctx, 1, &kernel));
    OP_REQUIRES_OK(ctx, GetShape(ctx, 2, &grad_y));
    DepthwiseConv conv;
    OP_REQUIRES_OK(ctx, MakeConv(x, kernel, &conv));
    OP_REQUIRES_OK(ctx, CheckGradYShape(conv, grad_y));
    OP_REQUIRES_OK(ctx, CheckTypes(ctx->input_type(2), {ctx->input_type(1)}));
    Call(ctx, kDepthwiseConvGradXCall, /*first=*/1, /*batches=*/{2}, x,
         /*has_batch=*/true);
  }
};

class DepthwiseConvGradKernelXlaOp : public DepthwiseConvXla {
 public:
  explicit DepthwiseConvGradKernelXlaOp(OpKernelConstruction* ctx)
      : DepthwiseConvXla(ctx) {
    OP_REQUIRES_OK(ctx, GetKernelSize(ctx, &kernel_size_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape x, kernel, grad_y;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, &x));
    OP_REQUIRES_OK(ctx, GetShape(ctx, 1, &grad_y));
    OP_REQUIRES_OK(ctx, KernelShape(x, kernel_size_, &kernel));
    DepthwiseConv conv;
    OP_REQUIRES_OK(ctx, MakeConv(x, kernel, &conv));
    OP_REQUIRES_OK(ctx, CheckGradYShape(conv, grad_y));
    Call(ctx, kDepthwiseConvGradKernelCall, /*first=*/0, /*batches=*/{0, 1}, kernel,
         /*has_batch=*/false);
  }

 private:
  std::vector<std::int64_t> kernel_size_;
};

#define KERAS_MP_REGISTER(name) \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device("XLA_CPU_JIT"), name##XlaOp)

KERAS_MP_REGISTER(DepthwiseConv);
KERAS_MP_REGISTER(DepthwiseConvGradX);
KERAS_MP_REGISTER(DepthwiseConvGradKernel);

#undef KERAS_MP_REGISTER

}  // namespace
}  // namespace keras_mp
