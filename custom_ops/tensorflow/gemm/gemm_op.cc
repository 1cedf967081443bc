// The checks of KerasMp>Fp16Gemm and KerasMp>Fp16GemmGeluGradient, and their products;
// their inputs, attributes and shape functions.

#include "gemm/gemm_op.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/bcast.h"
#include "tensorflow/core/util/matmul_bcast.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

std::optional<Activation> ActivationOf(const std::string& name) {
  if (name.empty()) return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "tanh") return Activation::kTanh;
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "gelu") return Activation::kGelu;
  return std::nullopt;
}

tensorflow::BCast::Vec LeadingSizes(const TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return {sizes.begin(), sizes.end() - 2};
}

// The step from indices[first] to the next index, or 0 at the end: the stride, in
// matrices, of the products that begin at `first`.
std::int64_t StepAt(const std::vector<std::int64_t>& indices, std::int64_t first) {
  const auto next = static_cast<std::size_t>(first + 1);
  return next < indices.size() ? indices[next] - indices[first] : 0;
}

// The matrix of this index.
char* MatrixAt(const TensorView& matrices, std::int64_t index, std::int64_t size) {
  return matrices.As<char>() + index * size * tensorflow::DataTypeSize(matrices.dtype);
}

}  // namespace

absl::Status Fp16GemmOp::Complete() const {
  if (ActivationOf(activation_)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "activation must be '', relu, tanh, sigmoid or gelu. Received: ", activation_));
}

absl::StatusOr<Views> Fp16GemmOp::Result(const Views& inputs,
                                         tensorflow::DataType type_of_c) const {
  const TensorView &a = inputs[0], &b = inputs[1], &alpha = inputs[2];
  const auto misfit = [&](const char* rule) {
    return absl::InvalidArgumentError(
        absl::StrCat(rule, ". Received: a.shape=", a.shape.DebugString(),
                     ", b.shape=", b.shape.DebugString()));
  };
  const auto fits_type = [&](tensorflow::DataType type) {
    return type == a.dtype || type == tensorflow::DT_FLOAT;
  };
  const int dims_a = a.shape.dims(), dims_b = b.shape.dims();
  if (dims_a < 2 || dims_b < 2) return misfit("a and b must have at least 2 dimensions");
  if (alpha.dtype != tensorflow::DT_FLOAT || alpha.shape.dims() != 0) {
    return misfit("alpha must be a scalar of float");
  }
  if (b.shape.dim_size(dims_b - (transpose_b_ ? 1 : 2)) != InnerSize(a.shape)) {
    return misfit("the inner sizes of a and b must be equal");
  }
  const std::int64_t n = b.shape.dim_size(dims_b - (transpose_b_ ? 2 : 1));
  if (inputs.size() > 4 || (inputs.size() == 4 && inputs[3].shape != TensorShape({n}))) {
    return misfit("there is at most one bias, of shape [N]");
  }
  if (!Has16Bits(a.dtype)) return misfit("a must be half or bfloat16");
  if (inputs.size() == 4 && !fits_type(inputs[3].dtype)) {
    return misfit("the bias has the dtype of a, or float32");
  }
  if (!fits_type(type_of_c)) return misfit("the result has the dtype of a, or float32");
  if (!fits_type(b.dtype)) return misfit("b has the dtype of a, or float32");
  // Checked here, because MatMulBCast ends the process on more than 2^63 products.
  const tensorflow::BCast leading(LeadingSizes(a.shape), LeadingSizes(b.shape));
  if (!leading.IsValid()) {
    return misfit("the leading dimensions of a and b must broadcast");
  }
  Views c(1);
  c[0].dtype = type_of_c;
  TF_RETURN_IF_ERROR(
      TensorShape::BuildTensorShape(leading.output_shape(), &c[0].shape));
  TF_RETURN_IF_ERROR(c[0].shape.AddDimWithStatus(
      a.shape.dim_size(dims_a - (transpose_a_ ? 1 : 2))));
  TF_RETURN_IF_ERROR(c[0].shape.AddDimWithStatus(n));
  return c;
}

absl::InlinedVector<Gemm, 1> Fp16GemmOp::PartsOf(const Views& inputs,
                                                 const TensorView& c) const {
  absl::InlinedVector<Gemm, 1> parts;
  if (c.shape.num_elements() == 0) return parts;
  const TensorView &a = inputs[0], &b = inputs[1];
  Gemm gemm;
  gemm.m = c.shape.dim_size(c.shape.dims() - 2);
  gemm.n = c.shape.dim_size(c.shape.dims() - 1);
  gemm.k = InnerSize(a.shape);
  gemm.transpose_a = transpose_a_;
  gemm.transpose_b = transpose_b_;
  gemm.input = a.type();
  gemm.rounds_b = b.dtype != a.dtype;
  gemm.output = c.type();
  gemm.activation = *ActivationOf(activation_);
  gemm.alpha = inputs[2].As<float>();
  gemm.bias_type = DataType::kFloat;
  if (inputs.size() == 4) {
    gemm.bias = inputs[3].data;
    gemm.bias_type = inputs[3].type();
  }
  gemm.lda = transpose_a_ ? gemm.m : gemm.k;
  gemm.ldb = transpose_b_ ? gemm.k : gemm.n;
  gemm.ldc = gemm.n;
  gemm.stride_c = gemm.m * gemm.n;

  const tensorflow::MatMulBCast broadcast(a.shape.dim_sizes(), b.shape.dim_sizes());
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
    Gemm part = gemm;
    part.batch = end - first;
    part.stride_a = part.batch > 1 ? step_a * gemm.m * gemm.k : 0;
    part.stride_b = part.batch > 1 ? step_b * gemm.k * gemm.n : 0;
    part.a = MatrixAt(a, regular ? first : of_a[first], gemm.m * gemm.k);
    part.b = MatrixAt(b, regular ? first : of_b[first], gemm.k * gemm.n);
    part.c = MatrixAt(c, first, gemm.stride_c);
    parts.push_back(part);
    first = end;
  }
  return parts;
}

absl::StatusOr<Views> Fp16GemmGeluGradientOp::Outputs(const Views& inputs) const {
  auto outputs = Result(OfProduct(inputs), inputs[0].dtype);
  TF_RETURN_IF_ERROR(outputs.status());
  const TensorView &upstream = inputs.back(), grad = (*outputs)[0];
  const bool is_float = upstream.dtype == tensorflow::DT_FLOAT;
  TF_RETURN_IF_ERROR(CheckTensor("the upstream gradient", upstream,
                                 is_float ? upstream.dtype : grad.dtype, grad.shape));
  const std::int64_t columns = grad.shape.dim_size(grad.shape.dims() - 1);
  outputs->push_back({tensorflow::DT_FLOAT, TensorShape({columns})});
  return outputs;
}

Status Fp16GemmGeluGradientOp::Run(const CpuDevice& device, const Views& inputs,
                                   const Views& outputs) const {
  const TensorView &grad = outputs[0], &sums = outputs[1], &upstream = inputs.back();
  std::fill_n(sums.As<float>(), sums.shape.num_elements(), 0.0f);
  for (Gemm part : PartsOf(OfProduct(inputs), grad)) {
    const std::int64_t bytes = static_cast<char*>(part.c) - grad.As<char>();
    part.activation = Activation::kGelu;
    part.upstream = MatrixAt(upstream, bytes / tensorflow::DataTypeSize(grad.dtype), 1);
    part.upstream_type = upstream.type();
    part.column_sums = sums.As<float>();
    const Status status = GemmCpu(part, device.threads());
    if (!status.ok()) return status;
  }
  return {};
}

namespace {

absl::Status Fp16GemmShape(InferenceContext* c) {
  ShapeHandle a, b, alpha;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 2, &a));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 2, &b));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &alpha));
  bool transpose_a, transpose_b;
  TF_RETURN_IF_ERROR(c->GetAttr("transpose_a", &transpose_a));
  TF_RETURN_IF_ERROR(c->GetAttr("transpose_b", &transpose_b));

  DimensionHandle inner;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(a, transpose_a ? -2 : -1),
                              c->Dim(b, transpose_b ? -1 : -2), &inner));
  const DimensionHandle rows = c->Dim(a, transpose_a ? -1 : -2);
  DimensionHandle columns = c->Dim(b, transpose_b ? -2 : -1);
  int biases;
  TF_RETURN_IF_ERROR(c->GetAttr("num_bias", &biases));
  for (int i = 3; i < 3 + biases; ++i) {
    ShapeHandle bias;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &bias));
    TF_RETURN_IF_ERROR(c->Merge(columns, c->Dim(bias, 0), &columns));
  }

  ShapeHandle batch_a, batch_b, batch, result;
  TF_RETURN_IF_ERROR(c->Subshape(a, 0, -2, &batch_a));
  TF_RETURN_IF_ERROR(c->Subshape(b, 0, -2, &batch_b));
  TF_RETURN_IF_ERROR(tensorflow::shape_inference::BroadcastBinaryOpOutputShapeFnHelper(
      c, batch_a, batch_b, /*incompatible_shape_error=*/true, &batch));
  TF_RETURN_IF_ERROR(c->Concatenate(batch, c->Matrix(rows, columns), &result));
  c->set_output(0, result);
  return absl::OkStatus();
}

absl::Status Fp16GemmGeluGradientShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(Fp16GemmShape(c));
  ShapeHandle grad;
  TF_RETURN_IF_ERROR(c->Merge(c->output(0), c->input(c->num_inputs() - 1), &grad));
  c->set_output(0, grad);
  c->set_output(1, c->Vector(c->Dim(grad, -1)));
  return absl::OkStatus();
}

REGISTER_OP("KerasMp>Fp16Gemm")
    .Input("a: T")
    .Input("b: Tb")
    .Input("alpha: float")
    .Input("bias: num_bias * Tbias")
    .Output("c: Tout")
    .Attr("T: {half, bfloat16}")
    .Attr("Tb: {half, bfloat16, float}")
    .Attr("Tbias: {half, bfloat16, float} = DT_FLOAT")
    .Attr("Tout: {half, bfloat16, float} = DT_HALF")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose_a: bool = false")
    .Attr("transpose_b: bool = false")
    .Attr("activation: {'', 'relu', 'tanh', 'sigmoid', 'gelu'} = ''")
    .SetShapeFn(Fp16GemmShape)
    .Doc("round(activation(alpha * op(a) op(b) + bias)), accumulated in FP32. An FP32 b "
         "is rounded to the dtype of a first, and its gradient is FP32.");

REGISTER_OP("KerasMp>Fp16GemmGeluGradient")
    .Input("a: T")
    .Input("b: Tb")
    .Input("alpha: float")
    .Input("bias: num_bias * Tbias")
    .Input("upstream: Tupstream")
    .Output("grad: T")
    .Output("sums: float")
    .Attr("T: {half, bfloat16}")
    .Attr("Tb: {half, bfloat16, float}")
    .Attr("Tbias: {half, bfloat16, float} = DT_FLOAT")
    .Attr("Tupstream: {half, bfloat16, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose_a: bool = false")
    .Attr("transpose_b: bool = false")
    .SetShapeFn(Fp16GemmGeluGradientShape)
    .Doc("The gradient of the argument of gelu in KerasMp>Fp16Gemm, rounded once, and its "
         "sums over all rows, in FP32.");

#ifdef KERAS_MP_HAS_CUDA
KERAS_MP_REGISTER_KERNEL(Fp16GemmOp, GpuDevice);
#endif

}  // namespace
}  // namespace keras_mp
