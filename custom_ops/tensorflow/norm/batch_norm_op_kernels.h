// The kernels of KerasMp>BatchNorm, KerasMp>BatchNormInference and their gradient, for every
// device. A Backend is made of the context, and has Normalize and Differentiate for the
// structs of batch_norm.h.

#ifndef KERAS_MP_TENSORFLOW_NORM_BATCH_NORM_OP_KERNELS_H_
#define KERAS_MP_TENSORFLOW_NORM_BATCH_NORM_OP_KERNELS_H_

#include "common/attributes.h"
#include "common/status.h"
#include "keras_mp/batch_norm.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp::batch_norm_op {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Inputs: the first `wide` are [outer, channels, inner], the others [channels]. Outputs:
// one like the first, the others [channels].
class ChannelOp : public tensorflow::OpKernel {
 public:
  ChannelOp(OpKernelConstruction* ctx, int wide) : OpKernel(ctx), wide_(wide) {
    OP_REQUIRES_OK(ctx, GetEpsilon(ctx, &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES(ctx, x.dims() == 3,
                absl::InvalidArgumentError(absl::StrCat(
                    "x must be [outer, channels, inner]. Received: x.shape=",
                    x.shape().DebugString())));
    const TensorShape row({x.dim_size(1)});
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      const TensorShape& expected = i < wide_ ? x.shape() : row;
      OP_REQUIRES(ctx, ctx->input(i).shape() == expected,
                  absl::InvalidArgumentError(absl::StrCat(
                      "input ", i, " must have the shape ", expected.DebugString(),
                      ". Received: ", ctx->input(i).shape().DebugString())));
    }
    Tensor* outputs[3];
    for (int i = 0; i < num_outputs(); ++i) {
      const TensorShape& shape = i == 0 ? x.shape() : row;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shape, &outputs[i]));
    }
    const ChannelShape shape = {x.dim_size(0), x.dim_size(1), x.dim_size(2)};
    OP_REQUIRES_OK(ctx, ToAbsl(Run(ctx, shape, epsilon_, outputs)));
  }

 protected:
  virtual Status Run(OpKernelContext* ctx, const ChannelShape& shape, float epsilon,
                     Tensor* const* outputs) = 0;

  static const float* Floats(OpKernelContext* ctx, int i) {
    return ctx->input(i).flat<float>().data();
  }
  static float* FloatsOf(Tensor* output) { return output->flat<float>().data(); }

 private:
  int wide_;
  float epsilon_;
};

template <class Backend, bool kInference>
class BatchNormOp : public ChannelOp {
 public:
  explicit BatchNormOp(OpKernelConstruction* ctx) : ChannelOp(ctx, /*wide=*/1) {}

 protected:
  Status Run(OpKernelContext* ctx, const ChannelShape& shape, float epsilon,
             Tensor* const* outputs) override {
    BatchNorm norm;
    norm.inference = kInference;
    norm.shape = shape;
    norm.type = TypeOf(ctx->input(0).dtype());
    norm.epsilon = epsilon;
    norm.x = ctx->input(0).data();
    norm.gamma = Floats(ctx, 1);
    norm.beta = Floats(ctx, 2);
    norm.y = outputs[0]->data();
    // Inputs in inference, where they are only read.
    norm.mean = kInference ? const_cast<float*>(Floats(ctx, 3)) : FloatsOf(outputs[1]);
    norm.variance =
        kInference ? const_cast<float*>(Floats(ctx, 4)) : FloatsOf(outputs[2]);
    return Backend(ctx).Normalize(norm);
  }
};

template <class Backend>
class BatchNormGradientOp : public ChannelOp {
 public:
  explicit BatchNormGradientOp(OpKernelConstruction* ctx)
      : ChannelOp(ctx, /*wide=*/2) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("inference", &inference_));
  }

 protected:
  Status Run(OpKernelContext* ctx, const ChannelShape& shape, float epsilon,
             Tensor* const* outputs) override {
    BatchNormGradient gradient;
    gradient.inference = inference_;
    gradient.shape = shape;
    gradient.type = TypeOf(ctx->input(0).dtype());
    gradient.epsilon = epsilon;
    gradient.x = ctx->input(0).data();
    gradient.grad_y = ctx->input(1).data();
    gradient.gamma = Floats(ctx, 2);
    gradient.mean = Floats(ctx, 3);
    gradient.variance = Floats(ctx, 4);
    gradient.grad_x = outputs[0]->data();
    gradient.grad_gamma = FloatsOf(outputs[1]);
    gradient.grad_beta = FloatsOf(outputs[2]);
    return Backend(ctx).Differentiate(gradient);
  }

 private:
  bool inference_;
};

}  // namespace keras_mp::batch_norm_op

#endif  // KERAS_MP_TENSORFLOW_NORM_BATCH_NORM_OP_KERNELS_H_
