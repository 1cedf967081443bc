// The XLA lowering of KerasMp>Sum: one reduction in FP32.

#include "common/lowering.h"

namespace keras_mp {
namespace {

class SumXlaOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    tensorflow::TensorShape x;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, /*rank=*/3, &x));
    ctx->SetOutput(0, SumOver(ctx, Widen(ctx->Input(0)), {1}));
  }
};

KERAS_MP_REGISTER_LOWERING("Sum", SumXlaOp);

}  // namespace
}  // namespace keras_mp
