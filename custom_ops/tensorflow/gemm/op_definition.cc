// The op KerasMp>Fp16Gemm: inputs, attributes and shape function.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

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
  for (int i = 3; i < c->num_inputs(); ++i) {
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

}  // namespace
}  // namespace keras_mp
