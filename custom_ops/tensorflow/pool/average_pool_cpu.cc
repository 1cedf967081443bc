// The ops KerasMp>AveragePool and its gradient: inputs, attributes and shape functions;
// and their CPU kernels, the functions of average_pool_cpu.h on TensorFlow's threads.

#include <cstdint>
#include <vector>

#include "common/attributes.h"
#include "common/cpu_device.h"
#include "common/status.h"
#include "keras_mp/average_pool_cpu.h"
#include "pool/pooling_window.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("KerasMp>AveragePool")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16}")
    .Attr("window: list(int) >= 3")
    .Attr("strides: list(int) >= 3")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 5, &x));
      Windows windows;
      TF_RETURN_IF_ERROR(GetWindows(c, &windows));
      std::vector<DimensionHandle> sizes = {c->Dim(x, 0)};
      for (int d = 0; d < 3; ++d) {
        sizes.emplace_back();
        TF_RETURN_IF_ERROR(tensorflow::shape_inference::GetWindowedOutputSizeFromDims(
            c, c->Dim(x, d + 1), windows.window[d], windows.strides[d],
            windows.is_same ? tensorflow::SAME : tensorflow::VALID, &sizes.back()));
      }
      sizes.push_back(c->Dim(x, 4));
      c->set_output(0, c->MakeShape(sizes));
      return absl::OkStatus();
    })
    .Doc("The mean of each window of [batch, a, b, c, channels], in FP32.");

REGISTER_OP("KerasMp>AveragePoolGradient")
    .Input("shape: int32")
    .Input("grad_y: T")
    .Output("grad_x: T")
    .Attr("T: {half, bfloat16}")
    .Attr("window: list(int) >= 3")
    .Attr("strides: list(int) >= 3")
    .Attr("padding: {'valid', 'same'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, y;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &x));
      TF_RETURN_IF_ERROR(c->WithRank(x, 5, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 5, &y));
      c->set_output(0, x);
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>AveragePool for inputs of this shape, in FP32.");

class AveragePoolOp : public tensorflow::OpKernel {
 public:
  explicit AveragePoolOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetWindows(ctx, &windows_));
  }

 protected:
  absl::Status MakePool(const TensorShape& x, tensorflow::DataType type,
                        AveragePool* pool) const {
    if (x.dims() != 5) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must be [batch, a, b, c, channels]. Received: x.shape=", x.DebugString()));
    }
    pool->batch = x.dim_size(0);
    pool->channels = x.dim_size(4);
    pool->type = TypeOf(type);
    for (int d = 0; d < 3; ++d) {
      pool->dimensions[d] = Pooled(x.dim_size(d + 1), windows_.window[d],
                                   windows_.strides[d], windows_.is_same);
    }
    return absl::OkStatus();
  }

  static TensorShape ShapeOf(const AveragePool& pool) {
    const auto& [a, b, c] = pool.dimensions;
    return TensorShape({pool.batch, a.pooled, b.pooled, c.pooled, pool.channels});
  }

 private:
  Windows windows_;
};

class AveragePoolCpuOp : public AveragePoolOp {
 public:
  using AveragePoolOp::AveragePoolOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    AveragePool pool;
    OP_REQUIRES_OK(ctx, MakePool(x.shape(), x.dtype(), &pool));
    Tensor* y;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ShapeOf(pool), &y));
    pool.from = x.data();
    pool.to = y->data();
    OP_REQUIRES_OK(ctx, ToAbsl(AveragePoolCpu(pool, CpuThreads(ctx))));
  }
};

class AveragePoolGradientCpuOp : public AveragePoolOp {
 public:
  using AveragePoolOp::AveragePoolOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad_y = ctx->input(1);
    OP_REQUIRES(ctx, ctx->input(0).dims() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("shape must be a list of sizes. Received: a tensor ",
                                 ctx->input(0).shape().DebugString())));
    TensorShape shape;
    const auto sizes = ctx->input(0).flat<std::int32_t>();
    for (std::int64_t i = 0; i < sizes.size(); ++i) {
      OP_REQUIRES_OK(ctx, shape.AddDimWithStatus(sizes(i)));
    }
    AveragePool pool;
    OP_REQUIRES_OK(ctx, MakePool(shape, grad_y.dtype(), &pool));
    OP_REQUIRES(ctx, grad_y.shape() == ShapeOf(pool),
                absl::InvalidArgumentError(absl::StrCat(
                    "grad_y must have the shape ", ShapeOf(pool).DebugString(),
                    ". Received: ", grad_y.shape().DebugString())));
    Tensor* grad_x;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &grad_x));
    pool.from = grad_y.data();
    pool.to = grad_x->data();
    OP_REQUIRES_OK(ctx, ToAbsl(AveragePoolGradientCpu(pool, CpuThreads(ctx))));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>AveragePool").Device(tensorflow::DEVICE_CPU),
                        AveragePoolCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("KerasMp>AveragePoolGradient").Device(tensorflow::DEVICE_CPU),
    AveragePoolGradientCpuOp);

}  // namespace
}  // namespace keras_mp
