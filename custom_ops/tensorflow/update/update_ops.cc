// The ops of the update step: inputs, outputs, attributes and shape functions.
// keras_mp/update.h defines what they compute.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/register_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "update/gradient_ops.h"
#include "update/master_ops.h"
#include "update/update_variables_op.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ExpectScalar(InferenceContext* c, int input) {
  ShapeHandle scalar;
  return c->WithRank(c->input(input), 0, &scalar);
}

REGISTER_OP("KerasMp>CheckGradients")
    .Input("scale: float")
    .Input("gradients: T")
    .Output("largest: float")
    .Output("sum_of_squares: float")
    .Attr("T: list({half, bfloat16, float}) >= 1")
    .Attr("compute_sum_of_squares: bool")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(ExpectScalar(c, 0));
      c->set_output(0, c->Vector(c->num_inputs() - 1));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Finds the largest magnitude in each of gradients / scale, NaN where it has one, "
         "and computes the sum of the squares of all their elements, or 0 without "
         "compute_sum_of_squares.");

REGISTER_OP("KerasMp>UnscaleGradients")
    .Input("scale: float")
    .Input("gradients: T")
    .Output("unscaled: count * float")
    .Output("largest: float")
    .Output("sum_of_squares: float")
    .Attr("T: list({half, bfloat16, float}) >= 1")
    .Attr("count: int >= 1")
    .Attr("compute_sum_of_squares: bool")
    .SetShapeFn([](InferenceContext* c) {
      UnscaleGradientsOp op;
      TF_RETURN_IF_ERROR(ExpectScalar(c, 0));
      TF_RETURN_IF_ERROR(ReadAttributes(c, &op));
      const int count = c->num_inputs() - 1;
      for (int i = 0; i < count; ++i) c->set_output(i, c->input(1 + i));
      c->set_output(count, c->Vector(count));
      c->set_output(count + 1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Computes gradients / scale in FP32, and what KerasMp>CheckGradients does.");

REGISTER_OP("KerasMp>SyncMastersFromWeights")
    .Input("masters: count * resource")
    .Input("weights: count * resource")
    .Attr("count: int >= 1")
    .Attr("is_stochastic: bool")
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .SetIsStateful()
    .Doc("Sets a master to its weight wherever the weight is not the master rounded.");

REGISTER_OP("KerasMp>CastMasters")
    .Input("masters: count * resource")
    .Input("weights: count * resource")
    .Input("uniforms: uniform_count * float")
    .Attr("count: int >= 1")
    .Attr("uniform_count: int >= 0")
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .SetIsStateful()
    .Doc("Rounds masters into their weights: stochastically with uniforms, else to "
         "nearest even.");

// The k-th weight is the 16-bit weight of masters[weight_of[k]]; the other masters are
// weights themselves. A master of int16 or int8 is the remainder of its weight. Slots are
// FP32, or uint8, codes of 8 bits or pairs of 4, as `code_bits` says; their exponents are
// exponents[k] for slots[exponent_of[k]]. The powers of gradients[power_of[k]] are
// powers[k].
// `hyperparameters` are the fields of UpdateHyperparameters.
REGISTER_OP("KerasMp>UpdateVariables")
    .Input("finite: bool")
    .Input("hyperparameters: float")
    .Input("gradients: T")
    .Input("masters: count * resource")
    .Input("slots: slot_count * resource")
    .Input("weights: weight_count * resource")
    .Input("exponents: exponent_count * resource")
    .Input("uniforms: uniform_count * float")
    .Input("powers: power_count * float")
    .Attr("T: list({half, bfloat16, float}) >= 1")
    .Attr("count: int >= 1")
    .Attr("slot_count: int >= 0")
    .Attr("weight_count: int >= 0")
    .Attr("exponent_count: int >= 0")
    .Attr("uniform_count: int >= 0")
    .Attr("power_count: int >= 0 = 0")
    .Attr("weight_of: list(int)")
    .Attr("exponent_of: list(int) = []")
    .Attr("code_bits: int = 8")
    .Attr("power_of: list(int) = []")
    .Attr("apply_weight_decay: list(bool)")
    .Attr(absl::StrCat("rule: {'", absl::StrJoin(kRuleNames, "', '"), "'}"))
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle hyperparameters;
      TF_RETURN_IF_ERROR(ExpectScalar(c, 0));
      return c->WithRank(c->input(1), 1, &hyperparameters);
    })
    .SetIsStateful()
    .Doc("Updates masters and slots by the gradients and rounds masters into weights, "
         "unless `finite` is false.");

KERAS_MP_REGISTER(CheckGradientsOp, CpuDevice);
KERAS_MP_REGISTER(UnscaleGradientsOp, CpuDevice);
KERAS_MP_REGISTER(SyncMastersFromWeightsOp, CpuDevice);
KERAS_MP_REGISTER(CastMastersOp, CpuDevice);
KERAS_MP_REGISTER(UpdateVariablesOp, CpuDevice);

KERAS_MP_REGISTER_ON_GPU(CheckGradientsOp);
KERAS_MP_REGISTER_ON_GPU(UnscaleGradientsOp);
KERAS_MP_REGISTER_ON_GPU(SyncMastersFromWeightsOp);
KERAS_MP_REGISTER_ON_GPU(CastMastersOp);
KERAS_MP_REGISTER_ON_GPU(UpdateVariablesOp);

}  // namespace
}  // namespace keras_mp
