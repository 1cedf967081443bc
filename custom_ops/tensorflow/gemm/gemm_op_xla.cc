// KerasMp>Fp16Gemm and its gradient of gelu under XLA. On a CPU XLA calls the kernels: it would convert 16-bit
// matrices to FP32 in memory, and multiply those. Elsewhere, and where XLA finds out a
// size when the program runs, the op becomes a DotGeneral with an FP32 result, and
// therefore an FP32 accumulator.

#include <cstdint>
#include <numeric>
#include <vector>

#include "common/lowering.h"
#include "common/register_op.h"
#include "gemm/gemm_op.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// Broadcasts a batch of matrices to the leading dimensions `batch`.
XlaOp BroadcastBatch(XlaOp matrices, const TensorShape& shape, const TensorShape& batch) {
  std::vector<std::int64_t> wanted, kept, kept_at;
  for (int i = 0; i < batch.dims(); ++i) wanted.push_back(batch.dim_size(i));
  for (int i = 2; i > 0; --i) wanted.push_back(shape.dim_size(shape.dims() - i));
  const int missing = static_cast<int>(wanted.size()) - shape.dims();
  for (int i = 0; i < shape.dims(); ++i) {
    // BroadcastInDim adds dimensions only, so those of size 1 are removed first.
    if (shape.dim_size(i) != wanted[i + missing]) continue;
    kept.push_back(shape.dim_size(i));
    kept_at.push_back(i + missing);
  }
  return xla::BroadcastInDim(xla::Reshape(matrices, kept), wanted, kept_at);
}

// alpha * op(a) op(b) + bias in FP32, of the shape `of_c`.
XlaOp Linear(XlaOpKernelContext* ctx, const Fp16GemmOp& op, const Views& inputs,
             bool has_bias, const TensorShape& of_c) {
  const TensorShape &of_a = inputs[0].shape, &of_b = inputs[1].shape;
  TensorShape batch = of_c;
  batch.RemoveLastDims(2);
  XlaOp a = ctx->Input(0);
  XlaOp b = xla::ConvertElementType(ctx->Input(1), ctx->input_xla_type(0));
  xla::DotDimensionNumbers dims;
  int rank_a = of_a.dims(), rank_b = of_b.dims();
  if (rank_b > 2) {
    a = BroadcastBatch(a, of_a, batch);
    b = BroadcastBatch(b, of_b, batch);
    rank_a = rank_b = batch.dims() + 2;
    for (int i = 0; i < batch.dims(); ++i) {
      dims.add_lhs_batch_dimensions(i);
      dims.add_rhs_batch_dimensions(i);
    }
  }
  dims.add_lhs_contracting_dimensions(rank_a - (op.transpose_a() ? 2 : 1));
  dims.add_rhs_contracting_dimensions(rank_b - (op.transpose_b() ? 1 : 2));
  XlaOp result = xla::DotGeneral(a, b, dims, /*precision_config=*/nullptr, xla::F32);
  // An empty sum is 0, not 0 * alpha.
  if (op.InnerSize(of_a) > 0) result = result * ctx->Input(2);
  if (!has_bias) return result;
  const XlaOp bias = xla::ConvertElementType(ctx->Input(3), xla::F32);
  return xla::Add(result, bias, {rank_a - 1});
}

// The distribution function of the normal distribution.
XlaOp NormalCdf(XlaOp x) {
  return Constant(x, 0.5) * xla::Erfc(-x * Constant(x, 0x1.6a09e6p-1));
}

class Fp16GemmXlaOp : public LoweringOf<Fp16GemmOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views& inputs,
             const Views& outputs) override {
    const XlaOp x = Linear(ctx, op(), inputs, inputs.size() > 3, outputs[0].shape);
    SetRounded(ctx, 0, Activate(x), ctx->output_xla_type(0));
  }

  XlaOp Activate(XlaOp x) const {
    if (op().activation() == "relu") {
      // Not xla::Max, which may lose a NaN on a CPU.
      const XlaOp zeros = xla::ZerosLike(x);
      return xla::Select(xla::Lt(x, zeros), zeros, x);
    }
    if (op().activation() == "tanh") return xla::Tanh(x);
    if (op().activation() == "sigmoid") return xla::Logistic(x);
    if (op().activation() == "gelu") return x * NormalCdf(x);
    return x;
  }
};

class Fp16GemmGeluGradientXlaOp : public LoweringOf<Fp16GemmGeluGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views& inputs,
             const Views& outputs) override {
    const int upstream = static_cast<int>(inputs.size()) - 1;
    const XlaOp x = Linear(ctx, op(), inputs, upstream > 3, outputs[0].shape);
    const XlaOp density =
        Constant(x, 0x1.988454p-2) * xla::Exp(Constant(x, -0.5) * x * x);
    const XlaOp grad = Widen(ctx->Input(upstream)) * (NormalCdf(x) + x * density);
    SetRounded(ctx, 0, grad, ctx->input_xla_type(0));
    std::vector<std::int64_t> rows(outputs[0].shape.dims() - 1);
    std::iota(rows.begin(), rows.end(), 0);
    ctx->SetOutput(1, SumOver(ctx, grad, rows));
  }
};

[[maybe_unused]] const bool are_registered =
    RegisterOp<Fp16GemmOp, CpuDevice, CallOrLowering<Fp16GemmOp, Fp16GemmXlaOp>>() &&
    RegisterOp<Fp16GemmGeluGradientOp, CpuDevice,
               CallOrLowering<Fp16GemmGeluGradientOp, Fp16GemmGeluGradientXlaOp>>();
REGISTER_KERNEL_BUILDER(Name(Fp16GemmOp::kName).Device("XLA_GPU_JIT"), Fp16GemmXlaOp);
REGISTER_KERNEL_BUILDER(Name(Fp16GemmGeluGradientOp::kName).Device("XLA_GPU_JIT"),
                        Fp16GemmGeluGradientXlaOp);

}  // namespace
}  // namespace keras_mp
