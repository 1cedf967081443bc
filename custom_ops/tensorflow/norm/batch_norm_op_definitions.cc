// The ops KerasMp>BatchNorm, which computes mean and variance,
// KerasMp>BatchNormInference, which takes them as inputs, and the gradient of both:
// inputs, attributes and shape functions.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Inputs: the first `wide` are [outer, channels, inner], the others [channels].
absl::Status ChannelShapes(InferenceContext* c, int wide) {
  ShapeHandle x;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
  DimensionHandle channels = c->Dim(x, 1);
  for (int i = 1; i < c->num_inputs(); ++i) {
    ShapeHandle input;
    if (i < wide) {
      TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
      continue;
    }
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &input));
    TF_RETURN_IF_ERROR(c->Merge(channels, c->Dim(input, 0), &channels));
  }
  c->set_output(0, x);
  for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(channels));
  return absl::OkStatus();
}

REGISTER_OP("KerasMp>BatchNorm")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("y: T")
    .Output("mean: float")
    .Output("variance: float")
    .Attr("T: {half, bfloat16}")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* c) { return ChannelShapes(c, /*wide=*/1); })
    .Doc("round(gamma (x - mean) / sqrt(variance + epsilon) + beta), in FP32.");

REGISTER_OP("KerasMp>BatchNormInference")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* c) { return ChannelShapes(c, /*wide=*/1); })
    .Doc("round(gamma (x - mean) / sqrt(variance + epsilon) + beta), in FP32.");

REGISTER_OP("KerasMp>BatchNormGradient")
    .Input("x: T")
    .Input("grad_y: T")
    .Input("gamma: float")
    .Input("mean: float")
    .Input("variance: float")
    .Output("grad_x: T")
    .Output("grad_gamma: float")
    .Output("grad_beta: float")
    .Attr("T: {half, bfloat16}")
    .Attr("epsilon: float")
    .Attr("inference: bool")
    .SetShapeFn([](InferenceContext* c) { return ChannelShapes(c, /*wide=*/2); })
    .Doc("The gradients of a batch normalization, in FP32.");

}  // namespace
}  // namespace keras_mp
