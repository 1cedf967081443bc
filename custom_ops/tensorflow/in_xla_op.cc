// The op KerasMp>InXla: 1 where XLA compiles the graph it stands in, and 0 elsewhere.
// While a function is traced nobody knows whether XLA will compile it.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

REGISTER_OP("KerasMp>InXla")
    .Output("in_xla: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    // Or the kernel of the CPU would be run, and its 0 put into the graph for XLA.
    .SetIsStateful()
    .Doc("1 where XLA compiles this op, and 0 elsewhere.");

class InXlaOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    tensorflow::Tensor* no;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &no));
    no->scalar<std::int32_t>()() = 0;
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>InXla").Device(tensorflow::DEVICE_CPU), InXlaOp);
// A branch is chosen by the host.
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>InXla").Device(tensorflow::DEVICE_GPU).HostMemory("in_xla"), InXlaOp);

}  // namespace
}  // namespace keras_mp
