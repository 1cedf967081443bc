// KerasMp>Sum under XLA: a call of its kernel on CPUs, or one reduction in FP32.

#include "common/lowering.h"
#include "norm/channel_ops.h"

namespace keras_mp {
namespace {

class SumXlaOp : public LoweringOf<SumOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(tensorflow::XlaOpKernelContext* ctx, const Views&, const Views&) override {
    ctx->SetOutput(0, SumOver(ctx, Widen(ctx->Input(0)), {1}));
  }
};

KERAS_MP_REGISTER_CALL_OR_LOWERING(SumOp, SumXlaOp);

}  // namespace
}  // namespace keras_mp
