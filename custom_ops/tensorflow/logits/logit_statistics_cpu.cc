// The ops KerasMp>LogitStatistics and its gradient: inputs, attributes and shape functions;
// and their CPU kernels, the functions of logit_statistics_cpu.h on TensorFlow's threads.

#include "keras_mp/logit_statistics_cpu.h"

#include <vector>

#include "common/cpu_threads.h"
#include "common/status.h"
#include "logits/arguments.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the inputs, as far as it is known.
absl::Status MergeShapes(InferenceContext* c, ShapeHandle* inputs, ShapeHandle* kernel) {
  LogitAttributes attributes;
  TF_RETURN_IF_ERROR(GetLogitAttributes(c, &attributes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, inputs));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, kernel));
  ShapeHandle targets;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(2), 1, &targets));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(targets, 2, &targets));
  DimensionHandle merged;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(*inputs, 1), c->Dim(*kernel, attributes.transpose ? 1 : 0), &merged));
  TF_RETURN_IF_ERROR(c->ReplaceDim(*inputs, 1, merged, inputs));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*inputs, 0), c->Dim(targets, 0), &merged));
  return c->ReplaceDim(*inputs, 0, merged, inputs);
}

REGISTER_OP("KerasMp>LogitStatistics")
    .Input("inputs: T")
    .Input("kernel: K")
    .Input("targets: L")
    .Input("bias: num_bias * float")
    .Output("logsumexp: float")
    .Output("target: float")
    .Output("total: float")
    .Output("argmax: int32")
    .Attr("T: {half, bfloat16, float}")
    .Attr("K: {half, bfloat16, float}")
    .Attr("L: {int32, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose: bool")
    .Attr("soft_cap: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle inputs, kernel;
      TF_RETURN_IF_ERROR(MergeShapes(c, &inputs, &kernel));
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Vector(c->Dim(inputs, 0)));
      return absl::OkStatus();
    })
    .Doc("What a cross entropy needs of the logits z = inputs * kernel + bias, with a "
         "cap where soft_cap is not 0, in FP32 and without a tensor of them: log(sum of "
         "exp(z)), the sum of targets * z, the sum of z, and the first largest, of each "
         "row. targets are labels, or a number for each word.");

REGISTER_OP("KerasMp>LogitStatisticsGradient")
    .Input("inputs: T")
    .Input("kernel: K")
    .Input("targets: L")
    .Input("logsumexp: float")
    .Input("grad_logsumexp: float")
    .Input("grad_target: float")
    .Input("grad_total: float")
    .Input("bias: num_bias * float")
    .Output("grad_inputs: T")
    .Output("grad_kernel: K")
    .Output("grad_bias: num_bias * float")
    .Attr("T: {half, bfloat16, float}")
    .Attr("K: {half, bfloat16, float}")
    .Attr("L: {int32, float}")
    .Attr("num_bias: int >= 0 = 0")
    .Attr("transpose: bool")
    .Attr("soft_cap: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle inputs, kernel;
      TF_RETURN_IF_ERROR(MergeShapes(c, &inputs, &kernel));
      c->set_output(0, inputs);
      c->set_output(1, kernel);
      for (int i = 2; i < c->num_outputs(); ++i) c->set_output(i, c->input(i + 5));
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>LogitStatistics for its inputs, kernel and bias, from "
         "its first result and the gradients of the first three. It computes the logits "
         "again.");

class LogitOp : public tensorflow::OpKernel {
 public:
  explicit LogitOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetLogitAttributes(ctx, &attributes_));
  }

 protected:
  // Makes the problem of the inputs that both ops have.
  absl::Status Make(OpKernelContext* ctx, LinearLogits* l) const {
    OpInputList biases;
    TF_RETURN_IF_ERROR(ctx->input_list("bias", &biases));
    const Tensor &inputs = ctx->input(0), &kernel = ctx->input(1);
    const Tensor& targets = ctx->input(2);
    const bool has_labels = targets.dtype() == tensorflow::DT_INT32;
    LogitShapes shapes = {inputs.shape(), kernel.shape(), targets.shape(), {}};
    for (const Tensor& bias : biases) shapes.biases.push_back(bias.shape());
    TF_RETURN_IF_ERROR(
        MakeLogits(shapes, has_labels, attributes_, inputs.dtype(), kernel.dtype(), l));
    l->inputs = inputs.data();
    l->kernel = kernel.data();
    if (biases.size() > 0) l->bias = biases[0].flat<float>().data();
    SetTargets(targets.data(), has_labels, l);
    return absl::OkStatus();
  }

 private:
  LogitAttributes attributes_;
};

class LogitStatisticsCpuOp : public LogitOp {
 public:
  using LogitOp::LogitOp;

  void Compute(OpKernelContext* ctx) override {
    LinearLogits l;
    OP_REQUIRES_OK(ctx, Make(ctx, &l));
    Tensor* results[4];
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, TensorShape({l.rows}), &results[i]));
    }
    const LogitStatistics statistics = {
        results[0]->flat<float>().data(), results[1]->flat<float>().data(),
        results[2]->flat<float>().data(), results[3]->flat<std::int32_t>().data()};
    OP_REQUIRES_OK(ctx, ToAbsl(LogitStatisticsCpu(l, statistics, CpuThreads(ctx))));
  }
};

class LogitStatisticsGradientCpuOp : public LogitOp {
 public:
  using LogitOp::LogitOp;

  void Compute(OpKernelContext* ctx) override {
    LinearLogits l;
    OP_REQUIRES_OK(ctx, Make(ctx, &l));
    const float* of_rows[4];
    for (int i = 0; i < 4; ++i) {
      const Tensor& given = ctx->input(3 + i);
      OP_REQUIRES(ctx, given.shape() == TensorShape({l.rows}),
                  absl::InvalidArgumentError(absl::StrCat(
                      "input ", 3 + i, " must be [", l.rows,
                      "]. Received: ", given.shape().DebugString())));
      of_rows[i] = given.flat<float>().data();
    }
    Tensor* grads[2];
    for (int i = 0; i < 2; ++i) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, ctx->input(i).shape(), &grads[i]));
    }
    LogitStatisticsGradient gradient = {of_rows[0],        of_rows[1],
                                        of_rows[2],        of_rows[3],
                                        grads[0]->data(), grads[1]->data()};
    OpOutputList grad_biases;
    OP_REQUIRES_OK(ctx, ctx->output_list("grad_bias", &grad_biases));
    if (grad_biases.size() > 0) {
      Tensor* grad_bias;
      OP_REQUIRES_OK(ctx, grad_biases.allocate(0, TensorShape({l.words}), &grad_bias));
      gradient.grad_bias = grad_bias->flat<float>().data();
    }
    OP_REQUIRES_OK(ctx, ToAbsl(LogitStatisticsGradientCpu(l, gradient, CpuThreads(ctx))));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>LogitStatistics").Device(tensorflow::DEVICE_CPU),
                        LogitStatisticsCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>LogitStatisticsGradient").Device(tensorflow::DEVICE_CPU),
    LogitStatisticsGradientCpuOp);

}  // namespace
}  // namespace keras_mp
