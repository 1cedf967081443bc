// The ops KerasMp>AveragePool and its gradient: inputs, attributes and shape functions.

#include "pool/average_pool_ops.h"

#include <vector>

#include "common/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("KerasMp>AveragePool")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .Attr("window: list(int) >= 3")
    .Attr("strides: list(int) >= 3")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 5, &x));
      AveragePoolOp op;
      TF_RETURN_IF_ERROR(ReadAttributes(c, &op));
      std::vector<DimensionHandle> sizes = {c->Dim(x, 0)};
      for (int d = 0; d < 3; ++d) {
        sizes.emplace_back();
        TF_RETURN_IF_ERROR(tensorflow::shape_inference::GetWindowedOutputSizeFromDims(
            c, c->Dim(x, d + 1), op.window(d), op.stride(d),
            op.is_same() ? tensorflow::SAME : tensorflow::VALID, &sizes.back()));
      }
      sizes.push_back(c->Dim(x, 4));
      c->set_output(0, c->MakeShape(sizes));
      return absl::OkStatus();
    })
    .Doc("The mean of each window of [batch, a, b, c, channels], in FP32.");

REGISTER_OP("KerasMp>AveragePoolGradient")
    .Input("shape: int32")
    .Input("grad_y: T")
    .Output("grad_x: T")
    .Attr("T: {half, bfloat16}")
    .Attr("window: list(int) >= 3")
    .Attr("strides: list(int) >= 3")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, y;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &x));
      TF_RETURN_IF_ERROR(c->WithRank(x, 5, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 5, &y));
      c->set_output(0, x);
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>AveragePool for inputs of this shape, in FP32.");

KERAS_MP_REGISTER_KERNEL(AveragePoolOp, CpuDevice);
KERAS_MP_REGISTER_KERNEL(AveragePoolGradientOp, CpuDevice);

}  // namespace
}  // namespace keras_mp
