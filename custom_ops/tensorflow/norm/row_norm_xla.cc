// KerasMp>RowNorm and its gradient under XLA: calls of their kernels on CPUs, or the
// formulas of row_norm_cpu.h.

#include "common/lowering.h"
#include "norm/row_ops.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

struct Normalized {
  XlaOp z;
  XlaOp inverse;  // factor of each row, [rows]
  XlaOp length;   // of each row, [rows], in unit length
};

Normalized Normalize(XlaOpKernelContext* ctx, const RowNormBaseOp& op) {
  XlaOp x = Widen(ctx->Input(0));
  if (op.kind() == RowNormKind::kLayer) x = xla::Sub(x, MeanOver(ctx, x, {1}), {0});
  Normalized row;
  if (op.kind() == RowNormKind::kUnitLength) {
    row.length = xla::Sqrt(SumOver(ctx, x * x, {1}));
    const XlaOp shortest = xla::FullLike(row.length, op.epsilon());
    // Not xla::Max, which may lose a NaN on a CPU.
    const XlaOp divisor =
        xla::Select(xla::Lt(row.length, shortest), shortest, row.length);
    row.inverse = Constant(x, 1) / divisor;
  } else {
    row.inverse = xla::Rsqrt(MeanOver(ctx, x * x, {1}) + Constant(x, op.epsilon()));
  }
  row.z = xla::Mul(x, row.inverse, {0});
  return row;
}

class RowNormXlaOp : public LoweringOf<RowNormOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    XlaOp y = Normalize(ctx, op()).z;
    if (op().has_gamma()) y = xla::Mul(y, ctx->Input(1), {1});
    if (op().has_beta()) y = xla::Add(y, ctx->Input(1 + op().has_gamma()), {1});
    SetRounded(ctx, 0, y, ctx->input_xla_type(0));
  }
};

class RowNormGradientXlaOp : public LoweringOf<RowNormGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views&, const Views&) override {
    const bool has_gamma = op().has_gamma();
    const Normalized row = Normalize(ctx, op());
    const XlaOp grad_y = Widen(ctx->Input(1));
    const XlaOp grad_z = has_gamma ? xla::Mul(grad_y, ctx->Input(2), {1}) : grad_y;
    SetRounded(ctx, 0, GradX(ctx, row, grad_z), ctx->input_xla_type(0));
    if (has_gamma) ctx->SetOutput(1, SumOver(ctx, grad_y * row.z, {0}));
    if (op().has_beta()) ctx->SetOutput(1 + has_gamma, SumOver(ctx, grad_y, {0}));
  }

  // The gradient of x from the gradient of z.
  XlaOp GradX(XlaOpKernelContext* ctx, const Normalized& row, XlaOp grad_z) const {
    const XlaOp product = grad_z * row.z;
    if (op().kind() == RowNormKind::kUnitLength) {
      const XlaOp zeros = xla::ZerosLike(row.length);
      // A row shorter than epsilon is divided by a constant.
      const XlaOp is_divided_by_its_length =
          xla::Lt(row.inverse * Constant(grad_z, op().epsilon()),
                  xla::FullLike(zeros, 1));
      const XlaOp sum =
          xla::Select(is_divided_by_its_length, SumOver(ctx, product, {1}), zeros);
      const XlaOp inverse =
          xla::Select(xla::Gt(row.length, zeros), row.inverse, zeros);
      return xla::Mul(grad_z - xla::Mul(row.z, sum, {0}), inverse, {0});
    }
    XlaOp grad = grad_z - xla::Mul(row.z, MeanOver(ctx, product, {1}), {0});
    if (op().kind() == RowNormKind::kLayer) {
      grad = xla::Sub(grad, MeanOver(ctx, grad_z, {1}), {0});
    }
    return xla::Mul(grad, row.inverse, {0});
  }
};

KERAS_MP_REGISTER_CALL_OR_LOWERING(RowNormOp, RowNormXlaOp);
KERAS_MP_REGISTER_CALL_OR_LOWERING(RowNormGradientOp, RowNormGradientXlaOp);

}  // namespace
}  // namespace keras_mp
