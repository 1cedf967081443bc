// The XLA lowerings of KerasMp>RowNorm and its gradient: the formulas of row_norm_cpu.h.

#include <string>

#include "common/attributes.h"
#include "common/lowering.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// The base class of both lowerings: attributes, checks and the normalized rows.
class RowNormXla : public tensorflow::XlaOpKernel {
 public:
  explicit RowNormXla(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kind", &kind_));
    OP_REQUIRES_OK(ctx, GetEpsilon(ctx, &epsilon_));
    OP_REQUIRES_OK(ctx, GetParameters(ctx, &gammas_, &betas_));
  }

 protected:
  // The first `matrices` inputs are [rows, size], and the others [size].
  absl::Status CheckInputs(XlaOpKernelContext* ctx, int matrices) const {
    TensorShape x;
    TF_RETURN_IF_ERROR(GetShape(ctx, 0, /*rank=*/2, &x));
    const TensorShape row({x.dim_size(1)});
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      TF_RETURN_IF_ERROR(CheckShape(ctx, i, i < matrices ? x : row));
    }
    return absl::OkStatus();
  }

  struct Normalized {
    XlaOp z;
    XlaOp inverse;  // factor of each row, [rows]
    XlaOp length;   // of each row, [rows], in unit length
  };

  Normalized Normalize(XlaOpKernelContext* ctx) const {
    XlaOp x = Widen(ctx->Input(0));
    if (is_layer()) x = xla::Sub(x, MeanOver(ctx, x, {1}), {0});
    Normalized row;
    if (is_unit_length()) {
      row.length = xla::Sqrt(SumOver(ctx, x * x, {1}));
      const XlaOp shortest = xla::FullLike(row.length, epsilon_);
      // Not xla::Max, which may lose a NaN on a CPU.
      const XlaOp divisor =
          xla::Select(xla::Lt(row.length, shortest), shortest, row.length);
      row.inverse = Constant(x, 1) / divisor;
    } else {
      row.inverse = xla::Rsqrt(MeanOver(ctx, x * x, {1}) + Constant(x, epsilon_));
    }
    row.z = xla::Mul(x, row.inverse, {0});
    return row;
  }

  bool is_layer() const { return kind_ == "layer"; }
  bool is_unit_length() const { return kind_ == "unit_length"; }
  bool has_gamma() const { return gammas_ == 1; }
  bool has_beta() const { return betas_ == 1; }
  float epsilon() const { return epsilon_; }

 private:
  std::string kind_;
  float epsilon_;
  int gammas_, betas_;
};

class RowNormXlaOp : public RowNormXla {
 public:
  using RowNormXla::RowNormXla;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/1));
    XlaOp y = Normalize(ctx).z;
    if (has_gamma()) y = xla::Mul(y, ctx->Input(1), {1});
    if (has_beta()) y = xla::Add(y, ctx->Input(1 + has_gamma()), {1});
    SetRounded(ctx, 0, y, ctx->input_xla_type(0));
  }
};

class RowNormGradientXlaOp : public RowNormXla {
 public:
  using RowNormXla::RowNormXla;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/2));
    const Normalized row = Normalize(ctx);
    const XlaOp grad_y = Widen(ctx->Input(1));
    const XlaOp grad_z = has_gamma() ? xla::Mul(grad_y, ctx->Input(2), {1}) : grad_y;
    SetRounded(ctx, 0, GradX(ctx, row, grad_z), ctx->input_xla_type(0));
    if (has_gamma()) ctx->SetOutput(1, SumOver(ctx, grad_y * row.z, {0}));
    if (has_beta()) ctx->SetOutput(1 + has_gamma(), SumOver(ctx, grad_y, {0}));
  }

 private:
  // The gradient of x from the gradient of z.
  XlaOp GradX(XlaOpKernelContext* ctx, const Normalized& row, XlaOp grad_z) const {
    const XlaOp product = grad_z * row.z;
    if (is_unit_length()) {
      const XlaOp zeros = xla::ZerosLike(row.length);
      // A row shorter than epsilon is divided by a constant.
      const XlaOp is_divided_by_its_length =
          xla::Lt(row.inverse * Constant(grad_z, epsilon()), xla::FullLike(zeros, 1));
      const XlaOp sum =
          xla::Select(is_divided_by_its_length, SumOver(ctx, product, {1}), zeros);
      const XlaOp inverse =
          xla::Select(xla::Gt(row.length, zeros), row.inverse, zeros);
      return xla::Mul(grad_z - xla::Mul(row.z, sum, {0}), inverse, {0});
    }
    XlaOp grad = grad_z - xla::Mul(row.z, MeanOver(ctx, product, {1}), {0});
    if (is_layer()) grad = xla::Sub(grad, MeanOver(ctx, grad_z, {1}), {0});
    return xla::Mul(grad, row.inverse, {0});
  }
};

KERAS_MP_REGISTER_LOWERING("RowNorm", RowNormXlaOp);
KERAS_MP_REGISTER_LOWERING("RowNormGradient", RowNormGradientXlaOp);

}  // namespace
}  // namespace keras_mp
