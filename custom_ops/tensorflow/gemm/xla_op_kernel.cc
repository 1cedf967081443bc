// The XLA lowering of KerasMp>Fp16Gemm: one DotGeneral with an FP32 result, and therefore
// an FP32 accumulator.

#include <cstdint>
#include <string>
#include <vector>

#include "gemm/op_kernel.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"
#include "xla/hlo/builder/xla_builder.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

absl::Status ToTensorShape(const absl::StatusOr<xla::Shape>& shape, TensorShape* to) {
  if (!shape.ok()) return shape.status();
  return tensorflow::XLAShapeToTensorShape(*shape, to);
}

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

class Fp16GemmXlaOp : public tensorflow::XlaOpKernel {
 public:
  explicit Fp16GemmXlaOp(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("transpose_a", &transpose_a_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("transpose_b", &transpose_b_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &activation_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape a_shape, b_shape;
    OP_REQUIRES_OK(ctx, ToTensorShape(ctx->InputXlaShape(0), &a_shape));
    OP_REQUIRES_OK(ctx, ToTensorShape(ctx->InputXlaShape(1), &b_shape));
    const auto misfit = [&](const char* rule) {
      return absl::InvalidArgumentError(
          absl::StrCat(rule, ". Received: a.shape=", a_shape.DebugString(),
                       ", b.shape=", b_shape.DebugString()));
    };
    OP_REQUIRES(ctx, a_shape.dims() >= 2 && b_shape.dims() >= 2,
                misfit("a and b must have at least 2 dimensions"));
    const auto inner = a_shape.dim_size(a_shape.dims() - (transpose_a_ ? 2 : 1));
    OP_REQUIRES(ctx, inner == b_shape.dim_size(b_shape.dims() - (transpose_b_ ? 1 : 2)),
                misfit("the inner sizes of a and b must be equal"));
    TensorShape alpha_shape, bias_shape;
    OP_REQUIRES_OK(ctx, ToTensorShape(ctx->InputXlaShape(2), &alpha_shape));
    OP_REQUIRES(ctx, alpha_shape.dims() == 0, misfit("alpha must be a scalar"));
    const TensorShape columns({b_shape.dim_size(b_shape.dims() - (transpose_b_ ? 2 : 1))});
    TensorShape batch;
    OP_REQUIRES_OK(
        ctx, ProductShape(a_shape, b_shape,
                          a_shape.dim_size(a_shape.dims() - (transpose_a_ ? 1 : 2)),
                          columns.dim_size(0), &batch));
    batch.RemoveLastDims(2);
    for (int i = 0; i < num_bias_; ++i) {
      OP_REQUIRES_OK(ctx, ToTensorShape(ctx->InputXlaShape(3 + i), &bias_shape));
      OP_REQUIRES(ctx, num_bias_ == 1 && bias_shape == columns,
                  misfit("there is at most one bias, of shape [N]"));
    }
    OP_REQUIRES(ctx,
                ctx->expected_output_dtype(0) == ctx->input_type(0) ||
                    ctx->expected_output_dtype(0) == tensorflow::DT_FLOAT,
                misfit("the result has the dtype of a, or float32"));
    OP_REQUIRES(ctx,
                ctx->input_type(1) == ctx->input_type(0) ||
                    ctx->input_type(1) == tensorflow::DT_FLOAT,
                misfit("b has the dtype of a, or float32"));

    xla::PrimitiveType input_type;
    OP_REQUIRES_OK(
        ctx, tensorflow::DataTypeToPrimitiveType(ctx->input_type(0), &input_type));
    XlaOp a = ctx->Input(0);
    XlaOp b = xla::ConvertElementType(ctx->Input(1), input_type);
    xla::DotDimensionNumbers dims;
    int rank_a = a_shape.dims(), rank_b = b_shape.dims();
    if (rank_b > 2) {
      a = BroadcastBatch(a, a_shape, batch);
      b = BroadcastBatch(b, b_shape, batch);
      rank_a = rank_b = batch.dims() + 2;
      for (int i = 0; i < batch.dims(); ++i) {
        dims.add_lhs_batch_dimensions(i);
        dims.add_rhs_batch_dimensions(i);
      }
    }
    dims.add_lhs_contracting_dimensions(rank_a - (transpose_a_ ? 2 : 1));
    dims.add_rhs_contracting_dimensions(rank_b - (transpose_b_ ? 1 : 2));
    XlaOp result = xla::DotGeneral(a, b, dims, /*precision_config=*/nullptr, xla::F32);
    if (inner > 0) result = result * ctx->Input(2);  // an empty sum is 0, not 0 * alpha
    for (int i = 0; i < num_bias_; ++i) {
      const XlaOp bias = xla::ConvertElementType(ctx->Input(3 + i), xla::F32);
      result = xla::Add(result, bias, {rank_a - 1});
    }
    xla::PrimitiveType type;
    OP_REQUIRES_OK(
        ctx, tensorflow::DataTypeToPrimitiveType(ctx->expected_output_dtype(0), &type));
    ctx->SetOutput(0, xla::ConvertElementType(Activate(result), type));
  }

 private:
  XlaOp Activate(XlaOp x) const {
    if (activation_ == "relu") {
      // Not xla::Max, which may lose a NaN on a CPU.
      const XlaOp zeros = xla::ZerosLike(x);
      return xla::Select(xla::Lt(x, zeros), zeros, x);
    }
    if (activation_ == "tanh") return xla::Tanh(x);
    if (activation_ == "sigmoid") return xla::Logistic(x);
    if (activation_ == "gelu") {
      const XlaOp half = xla::ScalarLike(x, 0.5), root = xla::ScalarLike(x, 0x1.6a09e6p-1);
      return half * x * xla::Erfc(-x * root);
    }
    return x;
  }

  bool transpose_a_, transpose_b_;
  std::string activation_;
  int num_bias_;
};

// Not REGISTER_XLA_OP, which has no effect after the first op has run.
REGISTER_KERNEL_BUILDER(Name("KerasMp>Fp16Gemm").Device("XLA_CPU_JIT"), Fp16GemmXlaOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>Fp16Gemm").Device("XLA_GPU_JIT"), Fp16GemmXlaOp);

}  // namespace
}  // namespace keras_mp
