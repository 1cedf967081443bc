// The ops KerasMp>Attention and its gradient: inputs, attributes and shape functions.

#include "attention/attention_ops.h"
#include "common/register_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shapes of query, key and value, as far as they are known.
absl::Status MergeShapes(InferenceContext* c, ShapeHandle* query, ShapeHandle* key,
                         ShapeHandle* value) {
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, query));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, key));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 4, value));
  DimensionHandle merged;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*query, 0), c->Dim(*key, 0), &merged));
  TF_RETURN_IF_ERROR(c->Merge(merged, c->Dim(*value, 0), &merged));
  TF_RETURN_IF_ERROR(c->ReplaceDim(*query, 0, merged, query));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*query, 3), c->Dim(*key, 3), &merged));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*key, 1), c->Dim(*value, 1), &merged));
  return c->Merge(c->Dim(*key, 2), c->Dim(*value, 2), &merged);
}

// Masks are the inputs from the `first` on, and after them seeds.
absl::Status CheckMaskAndSeed(InferenceContext* c, int first) {
  int masks;
  TF_RETURN_IF_ERROR(c->GetAttr("num_mask", &masks));
  for (int i = first; i < c->num_inputs(); ++i) {
    ShapeHandle given;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), i < first + masks ? 4 : 1, &given));
  }
  return absl::OkStatus();
}

// What was added after the first version has defaults, so that graphs which were saved by
// it are read: the seed and the dropout.
REGISTER_OP("KerasMp>Attention")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("mask: num_mask * bool")
    .Input("seed: num_seed * int32")
    .Output("result: T")
    .Output("log_sum_exp: float")
    .Attr("T: {half, bfloat16, float}")
    .Attr("num_mask: int >= 0 = 0")
    .Attr("scale: float")
    .Attr("is_causal: bool")
    .Attr("num_seed: int >= 0 = 0")
    .Attr("dropout: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle query, key, value;
      TF_RETURN_IF_ERROR(MergeShapes(c, &query, &key, &value));
      TF_RETURN_IF_ERROR(CheckMaskAndSeed(c, /*first=*/3));
      c->set_output(0, c->MakeShape({c->Dim(query, 0), c->Dim(query, 1),
                                     c->Dim(query, 2), c->Dim(value, 3)}));
      c->set_output(
          1, c->MakeShape({c->Dim(query, 0), c->Dim(query, 2), c->Dim(query, 1)}));
      return absl::OkStatus();
    })
    .Doc("round(softmax(scale * query key^T) value) for each head, in FP32, without a "
         "tensor of the scores; and the logarithm of each sum of the softmax, for the "
         "gradient. A mask is false where a key is hidden from a query. The weights are "
         "dropped by a hash of the seed and their position.");

REGISTER_OP("KerasMp>AttentionGradient")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("result: T")
    .Input("log_sum_exp: float")
    .Input("grad: T")
    .Input("mask: num_mask * bool")
    .Input("seed: num_seed * int32")
    .Output("grad_query: T")
    .Output("grad_key: T")
    .Output("grad_value: T")
    .Attr("T: {half, bfloat16, float}")
    .Attr("num_mask: int >= 0 = 0")
    .Attr("scale: float")
    .Attr("is_causal: bool")
    .Attr("num_seed: int >= 0 = 0")
    .Attr("dropout: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle query, key, value;
      TF_RETURN_IF_ERROR(MergeShapes(c, &query, &key, &value));
      for (int i = 3; i < 6; ++i) {
        ShapeHandle given;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), i == 4 ? 3 : 4, &given));
      }
      TF_RETURN_IF_ERROR(CheckMaskAndSeed(c, /*first=*/6));
      c->set_output(0, query);
      c->set_output(1, key);
      c->set_output(2, value);
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>Attention for its tensors, from its results and the "
         "gradient of the first. It computes the scores again.");

KERAS_MP_REGISTER(AttentionForwardOp, CpuDevice);
KERAS_MP_REGISTER(AttentionGradientOp, CpuDevice);

}  // namespace
}  // namespace keras_mp
