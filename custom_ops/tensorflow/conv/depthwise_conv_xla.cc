// The XlaOpKernels of KerasMp>DepthwiseConv and its gradients for a CPU: each compiles to
// one XLA custom call of a handler in conv/depthwise_conv_xla_ffi.cc, which runs the same
// kernel as the op outside of XLA. XLA itself has no kernel for such a convolution.

#include <vector>

#include "common/lowering.h"
#include "common/xla_dynamic_batch.h"
#include "conv/arguments.h"
#include "conv/xla_call_names.h"

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

  HandlerCall Call(const char* target, const TensorShape& result) const {
    return {"a depthwise convolution",
            target,
            {Attribute("strides", attributes_.strides),
             Attribute("dilations", attributes_.dilations),
             Attribute("is_same", attributes_.is_same)},
            {result}};
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
    HandlerCall call = Call(kDepthwiseConvCall, ResultShape(conv));
    call.fixed_inputs = {1, 2};
    OP_REQUIRES_OK(ctx, CallHandler(ctx, call));
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
    HandlerCall call = Call(kDepthwiseConvGradXCall, x);
    call.first_input = 1;
    call.fixed_inputs = {1};
    OP_REQUIRES_OK(ctx, CallHandler(ctx, call));
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
    HandlerCall call = Call(kDepthwiseConvGradKernelCall, kernel);
    call.fixed_results = {0};
    OP_REQUIRES_OK(ctx, CallHandler(ctx, call));
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
