// The kernel of KerasMp>Sum for every device. A Backend is made of the context, and has Add
// for the struct of sum.h.

#ifndef KERAS_MP_TENSORFLOW_NORM_SUM_OP_KERNEL_H_
#define KERAS_MP_TENSORFLOW_NORM_SUM_OP_KERNEL_H_

#include "common/status.h"
#include "keras_mp/sum.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

template <class Backend>
class SumOp : public tensorflow::OpKernel {
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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Add(sum)));
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_NORM_SUM_OP_KERNEL_H_
