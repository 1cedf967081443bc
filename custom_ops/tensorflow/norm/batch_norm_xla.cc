// The XLA lowerings of KerasMp>BatchNorm, KerasMp>BatchNormInference and their gradient:
// the formulas of batch_norm.h.

#include "common/attributes.h"
#include "common/lowering.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// Inputs: the first `wide` are [outer, channels, inner], the others [channels].
class BatchNormXla : public tensorflow::XlaOpKernel {
 public:
  BatchNormXla(OpKernelConstruction* ctx, int wide) : XlaOpKernel(ctx), wide_(wide) {
    OP_REQUIRES_OK(ctx, GetEpsilon(ctx, &epsilon_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape x;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, /*rank=*/3, &x));
    const TensorShape channels({x.dim_size(1)});
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_OK(ctx, CheckShape(ctx, i, i < wide_ ? x : channels));
    }
    Lower(ctx);
  }

 protected:
  virtual void Lower(XlaOpKernelContext* ctx) = 0;

  XlaOp Inverse(XlaOp variance) const {
    return xla::Rsqrt(variance + Constant(variance, epsilon_));
  }

  void SetResult(XlaOpKernelContext* ctx, XlaOp mean, XlaOp variance) const {
    const XlaOp gamma = ctx->Input(1), beta = ctx->Input(2);
    // Not x * scale - mean * scale, whose error grows with the mean.
    const XlaOp centered = xla::Sub(Widen(ctx->Input(0)), mean, {1});
    const XlaOp scaled = xla::Mul(centered, gamma * Inverse(variance), {1});
    SetRounded(ctx, 0, xla::Add(scaled, beta, {1}), ctx->input_xla_type(0));
  }

 private:
  int wide_;
  float epsilon_;
};

class BatchNormXlaOp : public BatchNormXla {
 public:
  explicit BatchNormXlaOp(OpKernelConstruction* ctx) : BatchNormXla(ctx, /*wide=*/1) {}

 private:
  void Lower(XlaOpKernelContext* ctx) override {
    const XlaOp x = Widen(ctx->Input(0)), mean = MeanOver(ctx, x, {0, 2});
    const XlaOp centered = xla::Sub(x, mean, {1});
    const XlaOp variance = MeanOver(ctx, centered * centered, {0, 2});
    SetResult(ctx, mean, variance);
    ctx->SetOutput(1, mean);
    ctx->SetOutput(2, variance);
  }
};

class BatchNormInferenceXlaOp : public BatchNormXla {
 public:
  explicit BatchNormInferenceXlaOp(OpKernelConstruction* ctx)
      : BatchNormXla(ctx, /*wide=*/1) {}

 private:
  void Lower(XlaOpKernelContext* ctx) override {
    SetResult(ctx, ctx->Input(3), ctx->Input(4));
  }
};

class BatchNormGradientXlaOp : public BatchNormXla {
 public:
  explicit BatchNormGradientXlaOp(OpKernelConstruction* ctx)
      : BatchNormXla(ctx, /*wide=*/2) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("inference", &inference_));
  }

 private:
  void Lower(XlaOpKernelContext* ctx) override {
    const XlaOp gamma = ctx->Input(2), mean = ctx->Input(3), variance = ctx->Input(4);
    const XlaOp x = Widen(ctx->Input(0)), grad_y = Widen(ctx->Input(1));
    const XlaOp centered = xla::Sub(x, mean, {1}), count = CountOver(x, {0, 2});
    XlaOp inverse = Inverse(variance);
    if (!inference_) {
      // Without elements the variance is NaN, and the gradients' sums are 0.
      const XlaOp zeros = xla::ZerosLike(inverse);
      inverse = xla::Select(xla::Gt(xla::Add(zeros, count), zeros), inverse, zeros);
    }
    const XlaOp grad_beta = SumOver(ctx, grad_y, {0, 2});
    const XlaOp grad_gamma = inverse * SumOver(ctx, grad_y * centered, {0, 2});
    const XlaOp scale = gamma * inverse;
    XlaOp grad_x = xla::Mul(grad_y, scale, {1});
    if (!inference_) {
      const XlaOp mean_term = scale * grad_beta / count;
      const XlaOp variance_term = scale * inverse * grad_gamma / count;
      grad_x = xla::Sub(grad_x, mean_term, {1}) -
             xla::Mul(centered, variance_term, {1});
    }
    SetRounded(ctx, 0, grad_x, ctx->input_xla_type(0));
    ctx->SetOutput(1, grad_gamma);
    ctx->SetOutput(2, grad_beta);
  }

  bool inference_;
};

KERAS_MP_REGISTER_LOWERING("BatchNorm", BatchNormXlaOp);
KERAS_MP_REGISTER_LOWERING("BatchNormInference", BatchNormInferenceXlaOp);
KERAS_MP_REGISTER_LOWERING("BatchNormGradient", BatchNormGradientXlaOp);

}  // namespace
}  // namespace keras_mp
