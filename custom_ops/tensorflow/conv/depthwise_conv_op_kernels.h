// The kernels of KerasMp>DepthwiseConv and its gradients, for every device. A Backend is made
// of the context, and has Convolve, GradX and GradKernel, the functions of
// depthwise_conv_cpu.h and depthwise_conv_cuda.h.

#ifndef KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OP_KERNELS_H_
#define KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OP_KERNELS_H_

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "conv/arguments.h"
#include "keras_mp/depthwise_conv.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp::depthwise_conv_op {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <class Backend>
class DepthwiseConvOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseConvOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConvAttributes(ctx, &attributes_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& kernel = ctx->input(1);
    tensorflow::OpInputList biases;
    OP_REQUIRES_OK(ctx, ctx->input_list("bias", &biases));
    DepthwiseConv conv;
    OP_REQUIRES_OK(ctx, MakeDepthwiseConv(x.shape(), kernel.shape(), attributes_,
                                          x.dtype(), &conv));
    std::vector<TensorShape> bias_shapes;
    std::vector<tensorflow::DataType> types = {kernel.dtype(),
                                               ctx->expected_output_dtype(0)};
    for (const Tensor& bias : biases) {
      bias_shapes.push_back(bias.shape());
      types.push_back(bias.dtype());
    }
    OP_REQUIRES_OK(ctx, CheckBias(conv, bias_shapes));
    OP_REQUIRES_OK(ctx, CheckTypes(x.dtype(), types));
    Tensor* y;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ResultShape(conv), &y));
    conv.kernel_type = TypeOf(kernel.dtype());
    const bool has_bias = biases.size() == 1;
    OP_REQUIRES_OK(
        ctx, ToAbsl(Backend(ctx).Convolve(
                 conv, x.data(), kernel.data(), has_bias ? biases[0].data() : nullptr,
                 has_bias ? TypeOf(biases[0].dtype()) : DataType::kFloat, y->data(),
                 TypeOf(y->dtype()))));
  }

 private:
  ConvAttributes attributes_;
};

template <class Backend>
class DepthwiseConvGradXOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseConvGradXOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConvAttributes(ctx, &attributes_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& kernel = ctx->input(1);
    const Tensor& grad_y = ctx->input(2);
    const TensorShape& x = ctx->input(0).shape();
    DepthwiseConv conv;
    OP_REQUIRES_OK(ctx, MakeDepthwiseConv(x, kernel.shape(), attributes_, grad_y.dtype(),
                                          &conv));
    OP_REQUIRES_OK(ctx, CheckGradYShape(conv, grad_y.shape()));
    OP_REQUIRES_OK(ctx, CheckTypes(grad_y.dtype(), {kernel.dtype()}));
    Tensor* grad_x;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x, &grad_x));
    conv.kernel_type = TypeOf(kernel.dtype());
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).GradX(conv, kernel.data(), grad_y.data(),
                                                  grad_x->data())));
  }

 private:
  ConvAttributes attributes_;
};

template <class Backend>
class DepthwiseConvGradKernelOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseConvGradKernelOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConvAttributes(ctx, &attributes_));
    OP_REQUIRES_OK(ctx, GetKernelSize(ctx, &kernel_size_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& grad_y = ctx->input(1);
    TensorShape kernel;
    OP_REQUIRES_OK(ctx, KernelShape(x.shape(), kernel_size_, &kernel));
    DepthwiseConv conv;
    OP_REQUIRES_OK(
        ctx, MakeDepthwiseConv(x.shape(), kernel, attributes_, x.dtype(), &conv));
    OP_REQUIRES_OK(ctx, CheckGradYShape(conv, grad_y.shape()));
    Tensor* grad_kernel;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, kernel, &grad_kernel));
    OP_REQUIRES_OK(ctx, ToAbsl(Backend(ctx).GradKernel(
                            conv, x.data(), grad_y.data(),
                            grad_kernel->flat<float>().data())));
  }

 private:
  ConvAttributes attributes_;
  std::vector<std::int64_t> kernel_size_;
};

}  // namespace keras_mp::depthwise_conv_op

#endif  // KERAS_MP_TENSORFLOW_CONV_DEPTHWISE_CONV_OP_KERNELS_H_
