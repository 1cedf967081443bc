// The kernels of KerasMp>Softmax, KerasMp>FloatSoftmax, KerasMp>RowNorm and their gradients,
// for every device. A Backend is made of the context, and has Normalize and Differentiate
// for the structs of softmax.h and row_norm.h.

#ifndef KERAS_MP_TENSORFLOW_NORM_ROW_OP_KERNELS_H_
#define KERAS_MP_TENSORFLOW_NORM_ROW_OP_KERNELS_H_

#include <string>

#include "common/attributes.h"
#include "common/status.h"
#include "keras_mp/row_norm.h"
#include "keras_mp/softmax.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp::row_op {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Checks shapes: the first `matrices` inputs are [rows, size] and the others [size].
inline absl::Status CheckInputs(OpKernelContext* ctx, int matrices) {
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

template <class Backend>
class SoftmaxOp : public tensorflow::OpKernel {
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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Normalize(softmax)));
  }
};

template <class Backend>
class SoftmaxGradientOp : public tensorflow::OpKernel {
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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Differentiate(gradient)));
  }
};

template <class Backend>
class FloatSoftmaxGradientOp : public tensorflow::OpKernel {
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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Differentiate(gradient)));
  }
};

// The base class of both kernels of a normalization: its attributes.
class RowNormOpBase : public tensorflow::OpKernel {
 public:
  explicit RowNormOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
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

template <class Backend>
class RowNormOp : public RowNormOpBase {
 public:
  using RowNormOpBase::RowNormOpBase;

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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Normalize(norm)));
  }
};

template <class Backend>
class RowNormGradientOp : public RowNormOpBase {
 public:
  using RowNormOpBase::RowNormOpBase;

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
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).Differentiate(gradient)));
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

}  // namespace keras_mp::row_op

#endif  // KERAS_MP_TENSORFLOW_NORM_ROW_OP_KERNELS_H_
