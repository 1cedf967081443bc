// The XLA lowerings of KerasMp>AveragePool and its gradient: the FP32 sum of each window,
// divided by the number of its elements that are not padding.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/attributes.h"
#include "common/lowering.h"
#include "pool/pooling_window.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// One integer for each dimension of [batch, a, b, c, channels].
using Sizes = std::array<std::int64_t, 5>;
using Paddings = std::array<std::pair<std::int64_t, std::int64_t>, 5>;

XlaOp SumsOfWindows(XlaOpKernelContext* ctx, XlaOp x, const Sizes& window,
                    const Sizes& strides, const Paddings& padding) {
  return xla::ReduceWindowWithGeneralPadding(
      x, Constant(x, 0), *ctx->GetOrCreateAdd(tensorflow::DT_FLOAT), window, strides,
      /*base_dilations=*/{}, /*window_dilations=*/{}, padding);
}

class AveragePoolXla : public tensorflow::XlaOpKernel {
 public:
  explicit AveragePoolXla(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetWindows(ctx, &windows_));
  }

 protected:
  std::vector<PooledDimension> DimensionsOf(const TensorShape& x) const {
    std::vector<PooledDimension> dimensions;
    for (int d = 0; d < 3; ++d) {
      dimensions.push_back(Pooled(x.dim_size(d + 1), windows_.window[d],
                                  windows_.strides[d], windows_.is_same));
    }
    return dimensions;
  }

  // Divides each sum by the number of elements of x in its window, the product of the
  // counts of the three dimensions.
  static XlaOp DivideByCounts(XlaOp sums,
                              const std::vector<PooledDimension>& dimensions) {
    for (int d = 0; d < 3; ++d) {
      const PooledDimension& one = dimensions[d];
      std::vector<float> counts;
      for (std::int64_t i = 0; i < one.pooled; ++i) {
        const std::int64_t first = i * one.stride - one.before;
        counts.push_back(static_cast<float>(std::min(first + one.window, one.size) -
                                            std::max<std::int64_t>(first, 0)));
      }
      sums = xla::Div(sums, xla::ConstantR1<float>(sums.builder(), counts), {d + 1});
    }
    return sums;
  }

 private:
  Windows windows_;
};

class AveragePoolXlaOp : public AveragePoolXla {
 public:
  using AveragePoolXla::AveragePoolXla;

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape x;
    OP_REQUIRES_OK(ctx, GetShape(ctx, 0, /*rank=*/5, &x));
    const auto dimensions = DimensionsOf(x);
    Sizes window = {1, 1, 1, 1, 1}, strides = window;
    Paddings padding = {};
    for (int d = 0; d < 3; ++d) {
      const PooledDimension& one = dimensions[d];
      window[d + 1] = one.window;
      strides[d + 1] = one.stride;
      const std::int64_t end = (one.pooled - 1) * one.stride + one.window - one.before;
      padding[d + 1] = {one.before, std::max<std::int64_t>(end - one.size, 0)};
    }
    const XlaOp sums =
        SumsOfWindows(ctx, Widen(ctx->Input(0)), window, strides, padding);
    SetRounded(ctx, 0, DivideByCounts(sums, dimensions), ctx->input_xla_type(0));
  }
};

class AveragePoolGradientXlaOp : public AveragePoolXla {
 public:
  using AveragePoolXla::AveragePoolXla;

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape shape;
    OP_REQUIRES_OK(ctx, ctx->ConstantInputAsShape(0, &shape));
    OP_REQUIRES(ctx, shape.dims() == 5,
                absl::InvalidArgumentError(absl::StrCat(
                    "shape must be that of [batch, a, b, c, channels]. Received: ",
                    shape.DebugString())));
    const auto dimensions = DimensionsOf(shape);
    TensorShape result = shape;
    for (int d = 0; d < 3; ++d) result.set_dim(d + 1, dimensions[d].pooled);
    OP_REQUIRES_OK(ctx, CheckShape(ctx, 1, result));
    const XlaOp grad_sums = DivideByCounts(Widen(ctx->Input(1)), dimensions);
    const XlaOp grad_x = result.num_elements() == 0
                           ? xla::Broadcast(Constant(grad_sums, 0), shape.dim_sizes())
                           : Spread(ctx, grad_sums, dimensions);
    SetRounded(ctx, 0, grad_x, ctx->input_xla_type(1));
  }

 private:
  // Sums, for each element of x, the gradients of the windows that contain it: interior
  // padding spreads the gradients by the strides, and windows of stride 1 sum them.
  static XlaOp Spread(XlaOpKernelContext* ctx, XlaOp grad_sums,
                      const std::vector<PooledDimension>& dimensions) {
    const XlaOp zero = Constant(grad_sums, 0);
    Sizes window = {1, 1, 1, 1, 1};
    const Sizes strides = window;
    xla::PaddingConfig apart;
    for (int d = 0; d < 5; ++d) apart.add_dimensions();
    for (int d = 0; d < 3; ++d) {
      const PooledDimension& one = dimensions[d];
      window[d + 1] = one.window;
      auto* dimension = apart.mutable_dimensions(d + 1);
      dimension->set_interior_padding(one.stride - 1);
      dimension->set_edge_padding_low(one.window - 1 - one.before);
      const std::int64_t last = (one.pooled - 1) * one.stride;
      dimension->set_edge_padding_high(one.size - 1 - last + one.before);
    }
    return SumsOfWindows(ctx, xla::Pad(grad_sums, zero, apart), window, strides, {});
  }
};

KERAS_MP_REGISTER_LOWERING("AveragePool", AveragePoolXlaOp);
KERAS_MP_REGISTER_LOWERING("AveragePoolGradient", AveragePoolGradientXlaOp);

}  // namespace
}  // namespace keras_mp
