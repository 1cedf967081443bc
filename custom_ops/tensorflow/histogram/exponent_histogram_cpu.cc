// The op KerasMp>ExponentHistogram: input, attribute and shape function; and its CPU
// kernel, the function of exponent_histogram_cpu.h.

#include <cstdint>

#include "common/register_kernel.h"
#include "keras_mp/exponent_histogram_cpu.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
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

// Inputs: x.
class ExponentHistogramOp : public OpHooks {
 public:
  static constexpr char kName[] = "KerasMp>ExponentHistogram";

  template <class Visitor>
  void Visit(Visitor&) {}

  absl::StatusOr<Views> Outputs(const Views&) const {
    return Views{{tensorflow::DT_INT64, tensorflow::TensorShape({kExponentBins})}};
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    const TensorView& x = inputs[0];
    ExponentHistogram histogram;
    histogram.size = x.shape.num_elements();
    histogram.type = x.type();
    histogram.x = x.data;
    histogram.counts = outputs[0].As<std::int64_t>();
    return ExponentHistogramCpu(histogram, device.threads());
  }
};

KERAS_MP_REGISTER_KERNEL(ExponentHistogramOp, CpuDevice);

}  // namespace
}  // namespace keras_mp
