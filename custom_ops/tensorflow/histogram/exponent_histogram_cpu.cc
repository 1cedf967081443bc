// The op KerasMp>ExponentHistogram: input, attribute and shape function; and its CPU
// kernel, the function of exponent_histogram_cpu.h on TensorFlow's threads.

#include "common/cpu_device.h"
#include "common/status.h"
#include "keras_mp/exponent_histogram_cpu.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

REGISTER_OP("KerasMp>ExponentHistogram")
    .Input("x: T")
    .Output("counts: int64")
    .Attr("T: {half, bfloat16, float}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(kExponentBins));
      return absl::OkStatus();
    })
    .Doc("How many numbers of x are zero, between two powers of two, or not finite.");

class ExponentHistogramCpuOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& x = ctx->input(0);
    tensorflow::Tensor* counts;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({kExponentBins}),
                                             &counts));
    ExponentHistogram histogram;
    histogram.size = x.NumElements();
    histogram.type = TypeOf(x.dtype());
    histogram.x = x.data();
    histogram.counts = counts->flat<std::int64_t>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(ExponentHistogramCpu(histogram, CpuThreads(ctx))));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("KerasMp>ExponentHistogram").Device(tensorflow::DEVICE_CPU),
    ExponentHistogramCpuOp);

}  // namespace
}  // namespace keras_mp
