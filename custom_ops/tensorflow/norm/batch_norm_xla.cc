// The XLA lowerings of KerasMp>BatchNorm, KerasMp>BatchNormInference and their gradient:
// the formulas of batch_norm.h.

#include "common/lowering.h"
#include "norm/channel_ops.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

XlaOp Inverse(XlaOp variance, float epsilon) {
  return xla::Rsqrt(variance + Constant(variance, epsilon));
}

// y, of any of the ops that normalize.
void SetResult(XlaOpKernelContext* ctx, XlaOp mean, XlaOp variance, float epsilon) {
  const XlaOp gamma = ctx->Input(1), beta = ctx->Input(2);
  // Not x * scale - mean * scale, whose error grows with the mean.
  const XlaOp centered = xla::Sub(Widen(ctx->Input(0)), mean, {1});
  const XlaOp scaled = xla::Mul(centered, gamma * Inverse(variance, epsilon), {1});
  SetRounded(ctx, 0, xla::Add(scaled, beta, {1}), ctx->input_xla_type(0));
}

class BatchNormXlaOp : public LoweringOf<BatchNormOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    const XlaOp x = Widen(ctx->Input(0)), mean = MeanOver(ctx, x, {0, 2});
    const XlaOp centered = xla::Sub(x, mean, {1});
    const XlaOp variance = MeanOver(ctx, centered * centered, {0, 2});
    SetResult(ctx, mean, variance, op().epsilon());
    ctx->SetOutput(1, mean);
    ctx->SetOutput(2, variance);
  }
};

class BatchNormInferenceXlaOp : public LoweringOf<BatchNormInferenceOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    SetResult(ctx, ctx->Input(3), ctx->Input(4), op().epsilon());
  }
};

class BatchNormGradientXlaOp : public LoweringOf<BatchNormGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    const XlaOp gamma = ctx->Input(2), mean = ctx->Input(3), variance = ctx->Input(4);
    const XlaOp x = Widen(ctx->Input(0)), grad_y = Widen(ctx->Input(1));
    const XlaOp centered = xla::Sub(x, mean, {1}), count = CountOver(x, {0, 2});
    XlaOp inverse = Inverse(variance, op().epsilon());
    if (!op().inference()) {
      // Without elements the variance is NaN, and the gradients' sums are 0.
      const XlaOp zeros = xla::ZerosLike(inverse);
      inverse = xla::Select(xla::Gt(xla::Add(zeros, count), zeros), inverse, zeros);
    }
    const XlaOp grad_beta = SumOver(ctx, grad_y, {0, 2});
    const XlaOp grad_gamma = inverse * SumOver(ctx, grad_y * centered, {0, 2});
    const XlaOp scale = gamma * inverse;
    XlaOp grad_x = xla::Mul(grad_y, scale, {1});
    if (!op().inference()) {
      const XlaOp mean_term = scale * grad_beta / count;
      const XlaOp variance_term = scale * inverse * grad_gamma / count;
      grad_x = xla::Sub(grad_x, mean_term, {1}) -
             xla::Mul(centered, variance_term, {1});
    }
    SetRounded(ctx, 0, grad_x, ctx->input_xla_type(0));
    ctx->SetOutput(1, grad_gamma);
    ctx->SetOutput(2, grad_beta);
  }
};

KERAS_MP_REGISTER_LOWERING("BatchNorm", BatchNormXlaOp);
KERAS_MP_REGISTER_LOWERING("BatchNormInference", BatchNormInferenceXlaOp);
KERAS_MP_REGISTER_LOWERING("BatchNormGradient", BatchNormGradientXlaOp);

}  // namespace
}  // namespace keras_mp
