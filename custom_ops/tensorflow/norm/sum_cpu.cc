// The op KerasMp>Sum: input, attribute and shape function; and its CPU kernel, the
// function of sum_cpu.h on TensorFlow's threads.

#include "common/cpu_threads.h"
#include "common/status.h"
#include "keras_mp/sum_cpu.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

REGISTER_OP("KerasMp>Sum")
    .Input("x: T")
    .Output("y: float")
    .Attr("T: {half, bfloat16}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
      c->set_output(0, c->Matrix(c->Dim(x, 0), c->Dim(x, 2)));
      return absl::OkStatus();
    })
    .Doc("The sums of [outer, count, inner] over count, in FP32.");

class SumCpuOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& x = ctx->input(0);
    OP_REQUIRES(ctx, x.dims() == 3,
                absl::InvalidArgumentError(
                    absl::StrCat("x must be [outer, count, inner]. Received: x.shape=",
                                 x.shape().DebugString())));
    // Where x has no elements, the size of y may overflow.
    tensorflow::TensorShape shape;
    OP_REQUIRES_OK(ctx, tensorflow::TensorShape::BuildTensorShape(
                            {x.dim_size(0), x.dim_size(2)}, &shape));
    tensorflow::Tensor* y;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &y));
    Sum sum;
    sum.outer = x.dim_size(0);
    sum.count = x.dim_size(1);
    sum.inner = x.dim_size(2);
    sum.type = TypeOf(x.dtype());
    sum.x = x.data();
    sum.y = y->flat<float>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(SumCpu(sum, CpuThreads(ctx))));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Sum").Device(tensorflow::DEVICE_CPU), SumCpuOp);

}  // namespace
}  // namespace keras_mp
