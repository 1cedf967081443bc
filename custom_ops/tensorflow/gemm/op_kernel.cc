// The base class of the op kernels of KerasMp>Fp16Gemm: checks shapes and splits a
// broadcast batch into calls of the kernel with constant strides.

#include "gemm/op_kernel.h"

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/bcast.h"
#include "tensorflow/core/util/matmul_bcast.h"

namespace keras_mp {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Activation ActivationOf(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "tanh") return Activation::kTanh;
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "gelu") return Activation::kGelu;
  return Activation::kNone;
}

absl::Status Misfit(const char* rule, const Tensor& a, const Tensor& b) {
  return absl::InvalidArgumentError(
      absl::StrCat(rule, ". Received: a.shape=", a.shape().DebugString(),
                   ", b.shape=", b.shape().DebugString()));
}

// The step from indices[first] to the next index, or 0 at the end: the stride, in
// matrices, of the products that begin at `first`.
std::int64_t StepAt(const std::vector<std::int64_t>& indices, std::int64_t first) {
  const auto next = static_cast<std::size_t>(first + 1);
  return next < indices.size() ? indices[next] - indices[first] : 0;
}

tensorflow::BCast::Vec LeadingSizes(const TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return {sizes.begin(), sizes.end() - 2};
}

}  // namespace

absl::Status ProductShape(const TensorShape& a, const TensorShape& b, std::int64_t m,
                          std::int64_t n, TensorShape* c) {
  // Checked here, because MatMulBCast ends the process on more than 2^63 products.
  const tensorflow::BCast leading(LeadingSizes(a), LeadingSizes(b));
  if (!leading.IsValid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the leading dimensions of a and b must broadcast. Received: a.shape=",
        a.DebugString(), ", b.shape=", b.DebugString()));
  }
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(leading.output_shape(), c));
  TF_RETURN_IF_ERROR(c->AddDimWithStatus(m));
  return c->AddDimWithStatus(n);
}

Fp16GemmOp::Fp16GemmOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("transpose_a", &transpose_a_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("transpose_b", &transpose_b_));
  std::string activation;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &activation));
  activation_ = ActivationOf(activation);
}

void Fp16GemmOp::Compute(OpKernelContext* ctx) {
  const Tensor& a = ctx->input(0);
  const Tensor& b = ctx->input(1);
  const Tensor& alpha = ctx->input(2);
  OpInputList bias;
  OP_REQUIRES_OK(ctx, ctx->input_list("bias", &bias));

  OP_REQUIRES(ctx, a.dims() >= 2 && b.dims() >= 2,
              Misfit("a and b must have at least 2 dimensions", a, b));
  OP_REQUIRES(ctx, alpha.dims() == 0, Misfit("alpha must be a scalar", a, b));
  Gemm gemm;
  gemm.m = a.dim_size(a.dims() - (transpose_a_ ? 1 : 2));
  gemm.k = a.dim_size(a.dims() - (transpose_a_ ? 2 : 1));
  gemm.n = b.dim_size(b.dims() - (transpose_b_ ? 2 : 1));
  OP_REQUIRES(ctx, b.dim_size(b.dims() - (transpose_b_ ? 1 : 2)) == gemm.k,
              Misfit("the inner sizes of a and b must be equal", a, b));
  OP_REQUIRES(ctx,
              bias.size() == 0 ||
                  (bias.size() == 1 && bias[0].dims() == 1 &&
                   bias[0].dim_size(0) == gemm.n),
              Misfit("there is at most one bias, of shape [N]", a, b));
  OP_REQUIRES(ctx,
              ctx->expected_output_dtype(0) == a.dtype() ||
                  ctx->expected_output_dtype(0) == tensorflow::DT_FLOAT,
              Misfit("the result has the dtype of a, or float32", a, b));
  OP_REQUIRES(ctx, b.dtype() == a.dtype() || b.dtype() == tensorflow::DT_FLOAT,
              Misfit("b has the dtype of a, or float32", a, b));

  TensorShape shape;
  OP_REQUIRES_OK(ctx, ProductShape(a.shape(), b.shape(), gemm.m, gemm.n, &shape));
  Tensor* c = nullptr;
  OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &c));
  if (c->NumElements() == 0) return;

  gemm.transpose_a = transpose_a_;
  gemm.transpose_b = transpose_b_;
  gemm.input = TypeOf(a.dtype());
  gemm.rounds_b = b.dtype() != a.dtype();
  gemm.output = TypeOf(c->dtype());
  gemm.activation = activation_;
  gemm.alpha = alpha.flat<float>().data();
  if (bias.size() == 1) {
    gemm.bias = bias[0].data();
    gemm.bias_type = TypeOf(bias[0].dtype());
  } else {
    gemm.bias_type = DataType::kFloat;
  }
  gemm.lda = transpose_a_ ? gemm.m : gemm.k;
  gemm.ldb = transpose_b_ ? gemm.k : gemm.n;
  gemm.ldc = gemm.n;
  gemm.stride_c = gemm.m * gemm.n;

  const tensorflow::MatMulBCast broadcast(a.shape().dim_sizes(), b.shape().dim_sizes());
  // Empty without broadcasting: then matrix i belongs to product i.
  const std::vector<std::int64_t> of_a(broadcast.x_batch_indices().begin(),
                                       broadcast.x_batch_indices().end());
  const std::vector<std::int64_t> of_b(broadcast.y_batch_indices().begin(),
                                       broadcast.y_batch_indices().end());
  const std::int64_t count = broadcast.output_batch_size();
  const bool regular = !broadcast.IsBroadcastingRequired();
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t step_a = regular ? 1 : StepAt(of_a, first);
    const std::int64_t step_b = regular ? 1 : StepAt(of_b, first);
    std::int64_t end = first + 1;
    while (end < count && (regular || (of_a[end] - of_a[end - 1] == step_a &&
                                       of_b[end] - of_b[end - 1] == step_b &&
                                       step_a >= 0 && step_b >= 0))) {
      ++end;
    }
    const auto at = [](const Tensor& matrices, std::int64_t index, std::int64_t size) {
      const std::int64_t bytes = tensorflow::DataTypeSize(matrices.dtype());
      return static_cast<const char*>(matrices.data()) + bytes * index * size;
    };
    Gemm part = gemm;
    part.batch = end - first;
    part.stride_a = part.batch > 1 ? step_a * gemm.m * gemm.k : 0;
    part.stride_b = part.batch > 1 ? step_b * gemm.k * gemm.n : 0;
    part.a = at(a, regular ? first : of_a[first], gemm.m * gemm.k);
    part.b = at(b, regular ? first : of_b[first], gemm.k * gemm.n);
    part.c = static_cast<char*>(c->data()) +
             first * gemm.stride_c * tensorflow::DataTypeSize(c->dtype());
    OP_REQUIRES_OK(ctx, ToAbsl(Multiply(ctx, part)));
    first = end;
  }
}

}  // namespace keras_mp
