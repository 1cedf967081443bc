// The XLA lowerings of KerasMp>AveragePool and its gradient: the FP32 sum of each window,
// divided by the number of its elements that are not padding.

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "common/lowering.h"
#include "pool/average_pool_ops.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// One integer for each dimension of [batch, a, b, c, channels].
using Sizes = std::array<std::int64_t, 5>;
using Paddings = std::array<std::pair<std::int64_t, std::int64_t>, 5>;

// Windows of up to so many elements are summed slice by slice.
constexpr std::int64_t kMostSlices = 16;

std::int64_t Product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1},
                         std::multiplies<>());
}

// Adds zeros before and after each dimension, or takes elements away where a number is
// negative.
XlaOp PadEdges(XlaOp x, const Paddings& padding) {
  xla::PaddingConfig config;
  for (const auto& [low, high] : padding) {
    auto* dimension = config.add_dimensions();
    dimension->set_edge_padding_low(low);
    dimension->set_edge_padding_high(high);
  }
  return xla::Pad(x, Constant(x, 0), config);
}

// Sums the first elements of all windows, the second ones, and so on.
XlaOp SumsOfSlices(XlaOp x, const Sizes& window, const Sizes& strides,
                   const Sizes& results) {
  XlaOp sums;
  for (std::int64_t a = 0; a < window[1]; ++a) {
    for (std::int64_t b = 0; b < window[2]; ++b) {
      for (std::int64_t c = 0; c < window[3]; ++c) {
        const Sizes start = {0, a, b, c, 0};
        Sizes limit;
        for (int d = 0; d < 5; ++d) {
          limit[d] = start[d] + (results[d] - 1) * strides[d] + 1;
        }
        const XlaOp slice = xla::Slice(x, start, limit, strides);
        sums = sums.valid() ? sums + slice : slice;
      }
    }
  }
  return sums;
}

XlaOp SumsOfWindows(XlaOpKernelContext* ctx, XlaOp x, const Sizes& window,
                    const Sizes& strides, const Paddings& padding) {
  return xla::ReduceWindowWithGeneralPadding(
      x, Constant(x, 0), *ctx->GetOrCreateAdd(tensorflow::DT_FLOAT), window, strides,
      /*base_dilations=*/{}, /*window_dilations=*/{}, padding);
}

// Whether an element of x may be in several windows.
bool Overlap(const PooledDimensions& dimensions) {
  return std::any_of(
      dimensions.begin(), dimensions.end(),
      [](const PooledDimension& one) { return one.window > one.stride; });
}

// Divides each sum by the number of elements of x in its window, the product of the counts
// of the three dimensions.
XlaOp DivideByCounts(XlaOp sums, const PooledDimensions& dimensions) {
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

class AveragePoolXlaOp : public LoweringOf<AveragePoolOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views& inputs, const Views&) override {
    const TensorShape& x = inputs[0].shape;
    const auto dimensions = op().DimensionsOf(x);
    Sizes window = {1, 1, 1, 1, 1}, strides = window;
    Sizes pooled = {x.dim_size(0), 0, 0, 0, x.dim_size(4)};
    Paddings padding = {};
    for (int d = 0; d < 3; ++d) {
      const PooledDimension& one = dimensions[d];
      window[d + 1] = one.window;
      strides[d + 1] = one.stride;
      pooled[d + 1] = one.pooled;
      const std::int64_t end = (one.pooled - 1) * one.stride + one.window - one.before;
      padding[d + 1] = {one.before, std::max<std::int64_t>(end - one.size, 0)};
    }
    // XLA computes slices along the channels in vectors, and reduced windows element by
    // element. But it computes x anew in each slice: they must have no element in common.
    const bool by_slices = !Overlap(dimensions) && Product(pooled) > 0 &&
                           Product(window) <= kMostSlices;
    const XlaOp wide = Widen(ctx->Input(0));
    const XlaOp sums =
        by_slices ? SumsOfSlices(PadEdges(wide, padding), window, strides, pooled)
                  : SumsOfWindows(ctx, wide, window, strides, padding);
    SetRounded(ctx, 0, DivideByCounts(sums, dimensions), ctx->input_xla_type(0));
  }
};

class AveragePoolGradientXlaOp : public LoweringOf<AveragePoolGradientOp> {
 public:
  using LoweringOf::LoweringOf;

 private:
  void Lower(XlaOpKernelContext* ctx, const Views& inputs,
             const Views& outputs) override {
    const TensorShape &x = outputs[0].shape, &y = inputs[1].shape;
    const auto dimensions = op().DimensionsOf(x);
    const XlaOp grad_sums = DivideByCounts(Widen(ctx->Input(1)), dimensions);
    const XlaOp grad_x =
        y.num_elements() == 0 ? xla::Broadcast(Constant(grad_sums, 0), x.dim_sizes())
        : Overlap(dimensions) ? Spread(ctx, grad_sums, dimensions)
                              : Repeat(grad_sums, dimensions, y);
    SetRounded(ctx, 0, grad_x, ctx->input_xla_type(1));
  }

  // Repeats, where windows do not overlap, the gradient of each window over its elements,
  // with zeros between the windows and after them.
  static XlaOp Repeat(XlaOp grad_sums, const PooledDimensions& dimensions,
                      const TensorShape& pooled) {
    // [batch, a, window, b, window, c, window, channels]
    std::vector<std::int64_t> repeated = {pooled.dim_size(0)}, from = {0};
    Sizes sizes = {pooled.dim_size(0), 0, 0, 0, pooled.dim_size(4)};
    xla::PaddingConfig apart;
    apart.add_dimensions();
    Paddings padding = {};
    for (int d = 0; d < 3; ++d) {
      const PooledDimension& one = dimensions[d];
      from.push_back(static_cast<std::int64_t>(repeated.size()));
      repeated.insert(repeated.end(), {one.pooled, one.window});
      apart.add_dimensions();
      apart.add_dimensions()->set_edge_padding_high(one.stride - one.window);
      sizes[d + 1] = one.pooled * one.stride;
      padding[d + 1] = {-one.before, one.size + one.before - sizes[d + 1]};
    }
    from.push_back(static_cast<std::int64_t>(repeated.size()));
    repeated.push_back(pooled.dim_size(4));
    apart.add_dimensions();
    const XlaOp windows = xla::BroadcastInDim(grad_sums, repeated, from);
    const XlaOp spaced = xla::Pad(windows, Constant(grad_sums, 0), apart);
    return PadEdges(xla::Reshape(spaced, sizes), padding);
  }

  // Sums, for each element of x, the gradients of the windows that contain it: interior
  // padding spreads the gradients by the strides, and windows of stride 1 sum them.
  static XlaOp Spread(XlaOpKernelContext* ctx, XlaOp grad_sums,
                      const PooledDimensions& dimensions) {
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
// Where TensorFlow chooses what XLA compiles, it finds only here that the shape has to be
// a constant. The device does not exist, so that this adds no second kernel.
REGISTER_XLA_OP(Name("KerasMp>AveragePoolGradient")
                    .Device("NONE")
                    .CompileTimeConstantInput("shape"),
                AveragePoolGradientXlaOp);

}  // namespace
}  // namespace keras_mp
