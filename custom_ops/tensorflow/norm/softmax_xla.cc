// The XLA lowerings of KerasMp>Softmax, KerasMp>FloatSoftmax and their gradients: the
// formulas of softmax_cpu.h.

#include <limits>

#include "common/lowering.h"
#include "norm/row_ops.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"

namespace keras_mp {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// The softmax of the rows of input 0, in FP32.
XlaOp Probabilities(XlaOpKernelContext* ctx) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const XlaOp x = Widen(ctx->Input(0)), infinity = xla::FullLike(x, kInfinity);
  // NaN becomes infinity before the maximum, because XLA's maximum and exponential may
  // lose a NaN. A row whose maximum is not finite gives NaN below.
  const XlaOp largest =
      xla::Reduce(xla::Select(xla::Lt(x, infinity), x, infinity), Constant(x, -kInfinity),
                  *ctx->GetOrCreateMax(tensorflow::DT_FLOAT), {1});
  const XlaOp powers = xla::Exp(xla::Sub(x, largest, {0}));
  const XlaOp sums = SumOver(ctx, powers, {1});
  const XlaOp nan = xla::FullLike(sums, std::numeric_limits<float>::quiet_NaN());
  return xla::Div(powers, xla::Select(xla::IsFinite(largest), sums, nan), {0});
}

class SoftmaxXlaOp : public LoweringOf<SoftmaxOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    SetRounded(ctx, 0, Probabilities(ctx), ctx->output_xla_type(0));
  }
};

// p (grad_y - sum(p grad_y)) of the FP32 probabilities p.
XlaOp GradientOf(XlaOpKernelContext* ctx, XlaOp p) {
  const XlaOp weighted = p * Widen(ctx->Input(1));
  return weighted - xla::Mul(p, SumOver(ctx, weighted, {1}), {0});
}

class SoftmaxGradientXlaOp : public LoweringOf<SoftmaxGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    SetRounded(ctx, 0, GradientOf(ctx, Probabilities(ctx)), ctx->input_xla_type(0));
  }
};

class FloatSoftmaxGradientXlaOp : public LoweringOf<FloatSoftmaxGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    ctx->SetOutput(0, GradientOf(ctx, Widen(ctx->Input(0))));
  }
};

KERAS_MP_REGISTER_LOWERING("Softmax", SoftmaxXlaOp);
KERAS_MP_REGISTER_LOWERING("SoftmaxGradient", SoftmaxGradientXlaOp);
KERAS_MP_REGISTER_LOWERING("FloatSoftmax", SoftmaxXlaOp);
KERAS_MP_REGISTER_LOWERING("FloatSoftmaxGradient", FloatSoftmaxGradientXlaOp);

}  // namespace
}  // namespace keras_mp
