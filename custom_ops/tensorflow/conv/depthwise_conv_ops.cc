// The ops KerasMp>DepthwiseConv and its gradients: inputs, attributes and shape functions.

#include <vector>

#include "common/register_op.h"
#include "conv/depthwise_conv_ops.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("KerasMp>DepthwiseConv")
    .Input("x: T")
    .Input("kernel: Tkernel")
    .Input("bias: num_bias * Tbias")
    .Output("y: Tout")
    .Attr("T: {half, bfloat16}")
    .Attr("Tkernel: {half, bfloat16, float}")
    .Attr("Tbias: {half, bfloat16, float} = DT_FLOAT")
    .Attr("Tout: {half, bfloat16, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("strides: list(int) >= 2")
    .Attr("dilations: list(int) >= 2")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, kernel;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, &kernel));
      DepthwiseConvOp op;
      TF_RETURN_IF_ERROR(ReadAttributes(c, &op));
      DimensionHandle channels, one;
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 3), c->Dim(kernel, 2), &channels));
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(kernel, 3), 1, &one));
      for (int i = 2; i < c->num_inputs(); ++i) {
        ShapeHandle bias;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &bias));
        TF_RETURN_IF_ERROR(c->Merge(channels, c->Dim(bias, 0), &channels));
      }
      std::vector<DimensionHandle> sizes = {c->Dim(x, 0)};
      for (int d = 0; d < 2; ++d) {
        const DimensionHandle size = c->Dim(x, d + 1), reach = c->Dim(kernel, d);
        sizes.push_back(c->UnknownDim());
        if (!c->ValueKnown(size) || !c->ValueKnown(reach)) continue;
        if (!IsCount(c->Value(reach))) {
          return absl::InvalidArgumentError(absl::StrCat(
              "the kernel must have sizes from 1 to 2^31 - 1. Received: kernel.shape=",
              c->DebugString(kernel)));
        }
        sizes.back() =
            c->MakeDim(op.Dimension(d, c->Value(size), c->Value(reach)).result);
      }
      sizes.push_back(channels);
      c->set_output(0, c->MakeShape(sizes));
      return absl::OkStatus();
    })
    .Doc("round(bias + the convolution of each channel of [batch, a, b, channels] with "
         "its part of the kernel [a, b, channels, 1]), accumulated in FP32. An FP32 "
         "kernel is rounded to the dtype of x first.");

REGISTER_OP("KerasMp>DepthwiseConvGradX")
    .Input("x: T")
    .Input("kernel: Tkernel")
    .Input("grad_y: T")
    .Output("grad_x: T")
    .Attr("T: {half, bfloat16}")
    .Attr("Tkernel: {half, bfloat16, float}")
    .Attr("strides: list(int) >= 2")
    .Attr("dilations: list(int) >= 2")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 4, &unused));
      c->set_output(0, x);
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>DepthwiseConv for x, of which it needs the shape alone.");

REGISTER_OP("KerasMp>DepthwiseConvGradKernel")
    .Input("x: T")
    .Input("grad_y: T")
    .Output("grad_kernel: float")
    .Attr("T: {half, bfloat16}")
    .Attr("kernel_size: list(int) >= 2")
    .Attr("strides: list(int) >= 2")
    .Attr("dilations: list(int) >= 2")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, grad_y;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, &grad_y));
      DepthwiseConvGradKernelOp op;
      TF_RETURN_IF_ERROR(ReadAttributes(c, &op));
      c->set_output(0, c->MakeShape({c->MakeDim(op.kernel_size()[0]),
                                     c->MakeDim(op.kernel_size()[1]), c->Dim(x, 3),
                                     c->MakeDim(1)}));
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>DepthwiseConv for its kernel, in FP32.");

KERAS_MP_REGISTER(DepthwiseConvOp, CpuDevice);
KERAS_MP_REGISTER(DepthwiseConvGradXOp, CpuDevice);
KERAS_MP_REGISTER(DepthwiseConvGradKernelOp, CpuDevice);

KERAS_MP_REGISTER_ON_GPU(DepthwiseConvOp);
KERAS_MP_REGISTER_ON_GPU(DepthwiseConvGradXOp);
KERAS_MP_REGISTER_ON_GPU(DepthwiseConvGradKernelOp);

}  // namespace
}  // namespace keras_mp
