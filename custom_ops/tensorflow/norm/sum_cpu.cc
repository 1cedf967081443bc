// The op KerasMp>Sum: input, attribute and shape function; and its CPU kernel, the
// function of sum_cpu.h on TensorFlow's threads.

#include "common/cpu_device.h"
#include "keras_mp/sum_cpu.h"
#include "norm/sum_op_kernel.h"
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

struct CpuSum {
  explicit CpuSum(tensorflow::OpKernelContext* ctx) : threads(CpuThreads(ctx)) {}

  Status Add(const Sum& sum) const { return SumCpu(sum, threads); }

  Parallel threads;
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Sum").Device(tensorflow::DEVICE_CPU),
                        SumOp<CpuSum>);

}  // namespace
}  // namespace keras_mp
