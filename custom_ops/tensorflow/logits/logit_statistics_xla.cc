// The XlaOpKernels of KerasMp>LogitStatistics and its gradient for a CPU: each compiles to
// one XLA custom call of a handler in logits/logit_statistics_xla_ffi.cc, which runs the
// same kernel as the op outside of XLA. XLA itself would make a tensor of the logits.

#include <vector>

#include "common/lowering.h"
#include "common/xla_dynamic_batch.h"
#include "logits/arguments.h"
#include "logits/xla_call_names.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;

class LogitXla : public tensorflow::XlaOpKernel {
 public:
  explicit LogitXla(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetLogitAttributes(ctx, &attributes_));
  }

 protected:
  // Makes the problem of the inputs that both ops have. The bias is the last input.
  absl::Status Make(XlaOpKernelContext* ctx, int first_bias, LinearLogits* l) const {
    LogitShapes shapes;
    TF_RETURN_IF_ERROR(GetShape(ctx, 0, &shapes.inputs));
    TF_RETURN_IF_ERROR(GetShape(ctx, 1, &shapes.kernel));
    TF_RETURN_IF_ERROR(GetShape(ctx, 2, &shapes.targets));
    for (int i = first_bias; i < ctx->num_inputs(); ++i) {
      shapes.biases.emplace_back();
      TF_RETURN_IF_ERROR(GetShape(ctx, i, &shapes.biases.back()));
    }
    return MakeLogits(shapes, ctx->input_type(2) == tensorflow::DT_INT32, attributes_,
                      ctx->input_type(0), ctx->input_type(1), l);
  }

  HandlerCall Call(const char* target, int first_bias,
                   const std::vector<TensorShape>& results) const {
    HandlerCall call = {"a cross entropy",
                        target,
                        {Attribute("transpose", attributes_.transpose),
                         Attribute("soft_cap", attributes_.soft_cap)},
                        results};
    call.fixed_inputs = {/*kernel*/ 1, first_bias};
    return call;
  }

 private:
  LogitAttributes attributes_;
};

class LogitStatisticsXlaOp : public LogitXla {
 public:
  using LogitXla::LogitXla;

  void Compile(XlaOpKernelContext* ctx) override {
    LinearLogits l;
    OP_REQUIRES_OK(ctx, Make(ctx, /*first_bias=*/3, &l));
    const std::vector<TensorShape> results(4, TensorShape({l.rows}));
    OP_REQUIRES_OK(
        ctx, CallHandler(ctx, Call(kLogitStatisticsCall, /*first_bias=*/3, results)));
  }
};

class LogitStatisticsGradientXlaOp : public LogitXla {
 public:
  using LogitXla::LogitXla;

  void Compile(XlaOpKernelContext* ctx) override {
    LinearLogits l;
    OP_REQUIRES_OK(ctx, Make(ctx, /*first_bias=*/7, &l));
    for (int i = 3; i < 7; ++i) {
      OP_REQUIRES_OK(ctx, CheckShape(ctx, i, TensorShape({l.rows})));
    }
    std::vector<TensorShape> grads(2);
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, GetShape(ctx, i, &grads[i]));
    if (ctx->num_inputs() > 7) grads.push_back(TensorShape({l.words}));
    HandlerCall call = Call(kLogitStatisticsGradientCall, /*first_bias=*/7, grads);
    call.fixed_results = {1, 2};
    OP_REQUIRES_OK(ctx, CallHandler(ctx, call));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>LogitStatistics").Device("XLA_CPU_JIT"),
                        LogitStatisticsXlaOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>LogitStatisticsGradient").Device("XLA_CPU_JIT"),
                        LogitStatisticsGradientXlaOp);

}  // namespace
}  // namespace keras_mp
