// The ops KerasMp>Softmax, KerasMp>FloatSoftmax, KerasMp>RowNorm and KerasMp>BatchNorm,
// their gradients, and KerasMp>Sum: inputs, attributes, shape functions and kernels.
// BatchNorm computes mean and variance, and BatchNormInference takes them as inputs.

#include "common/register_kernel.h"
#include "norm/channel_ops.h"
#include "norm/row_ops.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#ifdef KERAS_MP_HAS_CUDA
#include <cstdlib>
#include <string>
#endif

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Inputs: the first `matrices` are [rows, size], the others [size]. Outputs: one like
// the first, the others [size].
absl::Status RowShapes(InferenceContext* c, int matrices) {
  ShapeHandle x;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
  for (int i = 1; i < matrices; ++i) {
    TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
  }
  DimensionHandle size = c->Dim(x, 1);
  for (int i = matrices; i < c->num_inputs(); ++i) {
    ShapeHandle row;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &row));
    TF_RETURN_IF_ERROR(c->Merge(size, c->Dim(row, 0), &size));
  }
  c->set_output(0, x);
  for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(size));
  return absl::OkStatus();
}

REGISTER_OP("KerasMp>Softmax")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/1); })
    .Doc("round(exp(x - max(x)) / sum(exp(x - max(x)))) of each row, in FP32.");

REGISTER_OP("KerasMp>SoftmaxGradient")
    .Input("x: T")
    .Input("grad_y: T")
    .Output("grad_x: T")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/2); })
    .Doc("The gradient of KerasMp>Softmax, in FP32.");

REGISTER_OP("KerasMp>FloatSoftmax")
    .Input("x: float")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/1); })
    .Doc("round(exp(x - max(x)) / sum(exp(x - max(x)))) of each row of an FP32 x.");

REGISTER_OP("KerasMp>FloatSoftmaxGradient")
    .Input("y: T")
    .Input("grad_y: T")
    .Output("grad_x: float")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/2); })
    .Doc("The gradient of KerasMp>FloatSoftmax: y (grad_y - sum(y grad_y)), in FP32.");

REGISTER_OP("KerasMp>RowNorm")
    .Input("x: T")
    .Input("gamma: num_gamma * float")
    .Input("beta: num_beta * float")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .Attr("num_gamma: int >= 0")
    .Attr("num_beta: int >= 0")
    .Attr("kind: {'layer', 'root_mean_square', 'unit_length'}")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/1); })
    .Doc("round(gamma z + beta), z being each row normalized, in FP32.");

REGISTER_OP("KerasMp>RowNormGradient")
    .Input("x: T")
    .Input("grad_y: T")
    .Input("gamma: num_gamma * float")
    .Output("grad_x: T")
    .Output("grad_gamma: num_gamma * float")
    .Output("grad_beta: num_beta * float")
    .Attr("T: {half, bfloat16}")
    .Attr("num_gamma: int >= 0")
    .Attr("num_beta: int >= 0")
    .Attr("kind: {'layer', 'root_mean_square', 'unit_length'}")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* c) { return RowShapes(c, /*matrices=*/2); })
    .Doc("The gradients of KerasMp>RowNorm, in FP32.");

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

REGISTER_OP("KerasMp>Sum")
    .Input("x: T")
    .Output("y: float")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
      c->set_output(0, c->Matrix(c->Dim(x, 0), c->Dim(x, 2)));
      return absl::OkStatus();
    })
    .Doc("The sums of [outer, count, inner] over count, in FP32.");

template <class Device>
void RegisterKernels() {
  RegisterKernel<SoftmaxOp, Device>();
  RegisterKernel<SoftmaxGradientOp, Device>();
  RegisterKernel<FloatSoftmaxOp, Device>();
  RegisterKernel<FloatSoftmaxGradientOp, Device>();
  RegisterKernel<RowNormOp, Device>();
  RegisterKernel<RowNormGradientOp, Device>();
  RegisterKernel<BatchNormOp, Device>();
  RegisterKernel<BatchNormInferenceOp, Device>();
  RegisterKernel<BatchNormGradientOp, Device>();
  RegisterKernel<SumOp, Device>();
}

[[maybe_unused]] const bool are_registered = [] {
  RegisterKernels<CpuDevice>();
#ifdef KERAS_MP_HAS_CUDA
  // No GPU has measured them yet. TensorFlow places the ops on the CPU elsewhere.
  const char* chosen = std::getenv("KERAS_MP_GPU_REDUCTIONS");
  if (chosen != nullptr && std::string(chosen) == "kernels") RegisterKernels<GpuDevice>();
#endif
  return true;
}();

}  // namespace
}  // namespace keras_mp
