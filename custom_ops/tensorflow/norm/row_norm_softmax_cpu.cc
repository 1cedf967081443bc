// The CPU kernels of KerasMp>Softmax, KerasMp>FloatSoftmax, KerasMp>RowNorm and their
// gradients: the functions of softmax_cpu.h and row_norm_cpu.h on TensorFlow's threads.

#include <string>

#include "common/attributes.h"
#include "common/cpu_threads.h"
#include "common/status.h"
#include "keras_mp/row_norm_cpu.h"
#include "keras_mp/softmax_cpu.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Checks shapes: the first `matrices` inputs are [rows, size] and the others [size].
absl::Status CheckInputs(OpKernelContext* ctx, int matrices) {
  const Tensor& x = ctx->input(0);
  if (x.dims() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "x must be [rows, size]. Received: x.shape=", x.shape().DebugString()));
  }
  const TensorShape row({x.dim_size(1)});
  for (int i = 1; i < ctx->num_inputs(); ++i) {
    const TensorShape& expected = i < matrices ? x.shape() : row;
    if (ctx->input(i).shape() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", i, " must have the shape ", expected.DebugString(),
                       ". Received: ", ctx->input(i).shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

class SoftmaxCpuOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/1));
    const Tensor& x = ctx->input(0);
    Tensor* y;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &y));
    Softmax softmax;
    softmax.rows = x.dim_size(0);
    softmax.size = x.dim_size(1);
    softmax.type = TypeOf(y->dtype());
    softmax.is_x_float = x.dtype() == tensorflow::DT_FLOAT;
    softmax.x = x.data();
    softmax.y = y->data();
    OP_REQUIRES_OK(ctx, ToAbsl(SoftmaxCpu(softmax, CpuThreads(ctx))));
  }
};

class SoftmaxGradientCpuOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/2));
    const Tensor& x = ctx->input(0);
    Tensor* grad_x;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &grad_x));
    SoftmaxGradient gradient;
    gradient.rows = x.dim_size(0);
    gradient.size = x.dim_size(1);
    gradient.type = TypeOf(x.dtype());
    gradient.x = x.data();
    gradient.grad_y = ctx->input(1).data();
    gradient.grad_x = grad_x->data();
    OP_REQUIRES_OK(ctx, ToAbsl(SoftmaxGradientCpu(gradient, CpuThreads(ctx))));
  }
};

class FloatSoftmaxGradientCpuOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/2));
    const Tensor& y = ctx->input(0);
    Tensor* grad_x;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, y.shape(), &grad_x));
    FloatSoftmaxGradient gradient;
    gradient.rows = y.dim_size(0);
    gradient.size = y.dim_size(1);
    gradient.type = TypeOf(y.dtype());
    gradient.y = y.data();
    gradient.grad_y = ctx->input(1).data();
    gradient.grad_x = grad_x->flat<float>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(FloatSoftmaxGradientCpu(gradient, CpuThreads(ctx))));
  }
};

// The base class of both kernels of a normalization: its attributes.
class RowNormOp : public tensorflow::OpKernel {
 public:
  explicit RowNormOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string kind;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kind", &kind));
    OP_REQUIRES_OK(ctx, GetEpsilon(ctx, &epsilon_));
    int gammas, betas;
    OP_REQUIRES_OK(ctx, GetParameters(ctx, &gammas, &betas));
    if (kind == "root_mean_square") kind_ = RowNormKind::kRootMeanSquare;
    if (kind == "unit_length") kind_ = RowNormKind::kUnitLength;
  }

 protected:
  template <class Problem>
  Problem MakeProblem(const Tensor& x) const {
    Problem problem;
    problem.rows = x.dim_size(0);
    problem.size = x.dim_size(1);
    problem.type = TypeOf(x.dtype());
    problem.kind = kind_;
    problem.epsilon = epsilon_;
    problem.x = x.data();
    return problem;
  }

  // The data of an optional input, or null.
  static const float* Optional(const OpInputList& list) {
    return list.size() == 0 ? nullptr : list[0].flat<float>().data();
  }

 private:
  RowNormKind kind_ = RowNormKind::kLayer;
  float epsilon_;
};

class RowNormCpuOp : public RowNormOp {
 public:
  using RowNormOp::RowNormOp;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/1));
    const Tensor& x = ctx->input(0);
    OpInputList gamma, beta;
    OP_REQUIRES_OK(ctx, ctx->input_list("gamma", &gamma));
    OP_REQUIRES_OK(ctx, ctx->input_list("beta", &beta));
    Tensor* y;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &y));
    auto norm = MakeProblem<RowNorm>(x);
    norm.gamma = Optional(gamma);
    norm.beta = Optional(beta);
    norm.y = y->data();
    OP_REQUIRES_OK(ctx, ToAbsl(RowNormCpu(norm, CpuThreads(ctx))));
  }
};

class RowNormGradientCpuOp : public RowNormOp {
 public:
  using RowNormOp::RowNormOp;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, /*matrices=*/2));
    const Tensor& x = ctx->input(0);
    OpInputList gamma;
    OP_REQUIRES_OK(ctx, ctx->input_list("gamma", &gamma));
    Tensor* grad_x;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &grad_x));
    auto gradient = MakeProblem<RowNormGradient>(x);
    gradient.grad_y = ctx->input(1).data();
    gradient.gamma = Optional(gamma);
    gradient.grad_x = grad_x->data();
    OP_REQUIRES_OK(ctx, Allocate(ctx, "grad_gamma", x, &gradient.grad_gamma));
    OP_REQUIRES_OK(ctx, Allocate(ctx, "grad_beta", x, &gradient.grad_beta));
    OP_REQUIRES_OK(ctx, ToAbsl(RowNormGradientCpu(gradient, CpuThreads(ctx))));
  }

 private:
  static absl::Status Allocate(OpKernelContext* ctx, const char* name, const Tensor& x,
                               float** numbers) {
    OpOutputList list;
    TF_RETURN_IF_ERROR(ctx->output_list(name, &list));
    if (list.size() == 0) return absl::OkStatus();
    Tensor* row;
    TF_RETURN_IF_ERROR(list.allocate(0, TensorShape({x.dim_size(1)}), &row));
    *numbers = row->flat<float>().data();
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Softmax").Device(tensorflow::DEVICE_CPU),
                        SoftmaxCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>SoftmaxGradient").Device(tensorflow::DEVICE_CPU),
                        SoftmaxGradientCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>FloatSoftmax").Device(tensorflow::DEVICE_CPU),
                        SoftmaxCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>FloatSoftmaxGradient").Device(tensorflow::DEVICE_CPU),
    FloatSoftmaxGradientCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>RowNorm").Device(tensorflow::DEVICE_CPU),
                        RowNormCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>RowNormGradient").Device(tensorflow::DEVICE_CPU),
                        RowNormGradientCpuOp);

}  // namespace
}  // namespace keras_mp
