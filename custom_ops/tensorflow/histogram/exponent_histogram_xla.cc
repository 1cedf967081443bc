// The XLA lowering of KerasMp>ExponentHistogram: the bin of each number, from its bits,
// and a scatter that adds 1 to it.

#include "common/lowering.h"
#include "keras_mp/exponent_histogram_cpu.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

using xla::XlaOp;

// |x| in FP32, as bits. A subnormal number of bfloat16 would not survive a conversion on
// every device.
XlaOp MagnitudeBits(XlaOp x, xla::PrimitiveType type) {
  XlaOp bits;
  if (type == xla::BF16) {
    const XlaOp half = xla::BitcastConvertType(x, xla::U16);
    bits = xla::ConvertElementType(half, xla::U32);
    bits = xla::ShiftLeft(bits, xla::FullLike(bits, 16));
  } else {
    bits = xla::BitcastConvertType(Widen(x), xla::U32);
  }
  return xla::And(bits, xla::FullLike(bits, 0x7fffffff));
}

XlaOp BinOf(XlaOp bits) {
  constexpr int kMantissaBits = 23, kBias = 127;
  const auto number = [bits](std::uint32_t value) { return xla::FullLike(bits, value); };
  // Below 2^-126 the bits are a multiple of 2^-149, whose bin is 1; that of 0 is 0.
  const XlaOp subnormal = number(32) - xla::Clz(bits);
  const XlaOp normal = xla::ShiftRightLogical(bits, number(kMantissaBits)) +
                       number(kBinOfOne - kBias);  // infinity, too, falls into its bin
  const XlaOp bin =
      xla::Select(xla::Lt(bits, number(1u << kMantissaBits)), subnormal, normal);
  const XlaOp is_nan = xla::Gt(bits, number(0x7f800000));
  return xla::Select(is_nan, number(kNanBin), bin);
}

class ExponentHistogramXlaOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    const XlaOp bits = MagnitudeBits(ctx->Input(0), ctx->input_xla_type(0));
    const auto shape = ctx->InputXlaShape(0);
    OP_REQUIRES_OK(ctx, shape.status());
    const XlaOp bins = xla::ConvertElementType(BinOf(bits), xla::S32);
    const XlaOp ones = xla::ConvertElementType(xla::FullLike(bits, 1), xla::S64);
    const XlaOp zero = xla::Zero(ctx->builder(), xla::S64);
    // Each element of `bins` is an index of the one dimension of the counts.
    xla::ScatterDimensionNumbers dimensions;
    dimensions.set_index_vector_dim(static_cast<int>(shape->dimensions().size()));
    dimensions.add_inserted_window_dims(0);
    dimensions.add_scatter_dims_to_operand_dims(0);
    ctx->SetOutput(0, xla::Scatter(xla::Broadcast(zero, {kExponentBins}), bins, ones,
                                   *ctx->GetOrCreateAdd(tensorflow::DT_INT64),
                                   dimensions));
  }
};

KERAS_MP_REGISTER_LOWERING("ExponentHistogram", ExponentHistogramXlaOp);

}  // namespace
}  // namespace keras_mp
