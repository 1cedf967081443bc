// The ops KerasMp>LogitStatistics and its gradient: inputs, attributes and shape functions.

#include "common/register_op.h"
#include "logits/logit_statistics_ops.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the inputs, as far as it is known.
absl::Status MergeShapes(InferenceContext* c, ShapeHandle* inputs, ShapeHandle* kernel) {
  LogitOp op;
  TF_RETURN_IF_ERROR(ReadAttributes(c, &op));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, inputs));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, kernel));
  ShapeHandle targets;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(2), 1, &targets));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(targets, 2, &targets));
  DimensionHandle merged;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(*inputs, 1), c->Dim(*kernel, op.transpose() ? 1 : 0), &merged));
  TF_RETURN_IF_ERROR(c->ReplaceDim(*inputs, 1, merged, inputs));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*inputs, 0), c->Dim(targets, 0), &merged));
  return c->ReplaceDim(*inputs, 0, merged, inputs);
}

REGISTER_OP("KerasMp>LogitStatistics")
    .Input("inputs: T")
    .Input("kernel: K")
    .Input("targets: L")
    .Input("bias: num_bias * float")
    .Output("logsumexp: float")
    .Output("target: float")
    .Output("total: float")
    .Output("argmax: int32")
    .Attr("T: {half, bfloat16, float}")
    .Attr("K: {half, bfloat16, float}")
    .Attr("L: {int32, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose: bool")
    .Attr("soft_cap: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle inputs, kernel;
      TF_RETURN_IF_ERROR(MergeShapes(c, &inputs, &kernel));
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Vector(c->Dim(inputs, 0)));
      return absl::OkStatus();
    })
    .Doc("What a cross entropy needs of the logits z = inputs * kernel + bias, with a "
         "cap where soft_cap is not 0, in FP32 and without a tensor of them: log(sum of "
         "exp(z)), the sum of targets * z, the sum of z, and the first largest, of each "
         "row. targets are labels, or a number for each word.");

REGISTER_OP("KerasMp>LogitStatisticsGradient")
    .Input("inputs: T")
    .Input("kernel: K")
    .Input("targets: L")
    .Input("logsumexp: float")
    .Input("grad_logsumexp: float")
    .Input("grad_target: float")
    .Input("grad_total: float")
    .Input("bias: num_bias * float")
    .Output("grad_inputs: T")
    .Output("grad_kernel: K")
    .Output("grad_bias: num_bias * float")
    .Attr("T: {half, bfloat16, float}")
    .Attr("K: {half, bfloat16, float}")
    .Attr("L: {int32, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose: bool")
    .Attr("soft_cap: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle inputs, kernel;
      TF_RETURN_IF_ERROR(MergeShapes(c, &inputs, &kernel));
      c->set_output(0, inputs);
      c->set_output(1, kernel);
      for (int i = 2; i < c->num_outputs(); ++i) c->set_output(i, c->input(i + 5));
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>LogitStatistics for its inputs, kernel and bias, from "
         "its first result and the gradients of the first three. It computes the logits "
         "again.");

KERAS_MP_REGISTER(LogitStatisticsOp, CpuDevice);
KERAS_MP_REGISTER(LogitStatisticsGradientOp, CpuDevice);

}  // namespace
}  // namespace keras_mp
