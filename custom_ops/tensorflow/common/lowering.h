// The parts of XLA lowerings: an op on 16-bit tensors becomes its formula in FP32 between
// two conversions.

#ifndef KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_
#define KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_

#include <algorithm>
#include <cstdint>

#include "common/cpu_device.h"
#include "common/register_op.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/hlo/builder/xla_builder.h"

namespace keras_mp {

using Dimensions = absl::Span<const std::int64_t>;

// Converts to FP32. A bfloat16 is the upper half of an FP32 number; where XLA converts it
// itself inside of a reduction, it computes element by element.
inline xla::XlaOp Widen(xla::XlaOp x) {
  const auto shape = x.builder()->GetShape(x);
  if (!shape.ok() || shape->element_type() != xla::BF16) {
    return xla::ConvertElementType(x, xla::F32);
  }
  const xla::XlaOp upper =
      xla::ConvertElementType(xla::BitcastConvertType(x, xla::U16), xla::U32);
  const xla::XlaOp bits = xla::ConstantR0<std::uint32_t>(x.builder(), 16);
  return xla::BitcastConvertType(xla::ShiftLeft(upper, bits), xla::F32);
}

inline xla::XlaOp Constant(xla::XlaOp like, float value) {
  return xla::ConstantR0<float>(like.builder(), value);
}

// Whether `dimension` is summed into vectors: no other one of the summed `dimensions` has
// more than one element, and a later dimension that is kept has.
inline bool SumsVectors(const xla::Shape& shape, Dimensions dimensions,
                        std::int64_t dimension) {
  const auto rank = static_cast<std::int64_t>(shape.dimensions().size());
  for (std::int64_t d = 0; d < rank; ++d) {
    const bool is_summed = std::count(dimensions.begin(), dimensions.end(), d) > 0;
    const bool has_many = shape.dimensions(d) > 1;
    if (d != dimension && is_summed && has_many) return false;
    if (d > dimension && !is_summed && has_many) return true;
  }
  return false;
}

inline bool IsForCpu(tensorflow::XlaOpKernelContext* ctx) {
  return ctx->compiler()->options().device_type == tensorflow::DEVICE_CPU_XLA_JIT;
}

// Sums over the dimensions. On a CPU, XLA computes a sum of many vectors element by
// element where it converts them on the way, and a sum of four of them in vectors; so
// there the quarters of the first dimension are added up before. With eighths it took
// longer to compile, and hardly less to run.
inline xla::XlaOp SumOver(tensorflow::XlaOpKernelContext* ctx, xla::XlaOp x,
                          Dimensions dimensions) {
  constexpr std::int64_t kParts = 4;
  const auto reduce = [&](xla::XlaOp terms) {
    return xla::Reduce(terms, Constant(x, 0),
                       *ctx->GetOrCreateAdd(tensorflow::DT_FLOAT), dimensions);
  };
  const auto shape = x.builder()->GetShape(x);
  if (!shape.ok()) return x.builder()->ReportError(shape.status());
  const std::int64_t first = dimensions[0], size = shape->dimensions(first);
  if (!IsForCpu(ctx) || shape->is_dynamic() || size < 2 * kParts ||
      !SumsVectors(*shape, dimensions, first)) {
    return reduce(x);
  }
  const std::int64_t part = size / kParts, end = part * kParts;
  xla::XlaOp parts = xla::SliceInDim(x, 0, part, 1, first);
  for (std::int64_t at = part; at < end; at += part) {
    parts = parts + xla::SliceInDim(x, at, at + part, 1, first);
  }
  const xla::XlaOp sums = reduce(parts);
  return end == size ? sums : sums + reduce(xla::SliceInDim(x, end, size, 1, first));
}

// The number of elements that SumOver sums, in FP32. A dynamic dimension has an int32
// size at run time; a static one may be larger than that.
inline xla::XlaOp CountOver(xla::XlaOp x, Dimensions dimensions) {
  const auto shape = x.builder()->GetShape(x);
  if (!shape.ok()) return x.builder()->ReportError(shape.status());
  double known = 1;
  for (const std::int64_t dimension : dimensions) {
    if (shape->is_static_dimension(dimension)) known *= shape->dimensions(dimension);
  }
  xla::XlaOp count = Constant(x, static_cast<float>(known));
  for (const std::int64_t dimension : dimensions) {
    if (shape->is_static_dimension(dimension)) continue;
    count = count * Widen(xla::GetDimensionSize(x, dimension));
  }
  return count;
}

inline xla::XlaOp MeanOver(tensorflow::XlaOpKernelContext* ctx, xla::XlaOp x,
                           Dimensions dimensions) {
  return SumOver(ctx, x, dimensions) / CountOver(x, dimensions);
}

// Rounds the FP32 `wide` to the type of the output.
inline void SetRounded(tensorflow::XlaOpKernelContext* ctx, int output, xla::XlaOp wide,
                       xla::PrimitiveType type) {
  ctx->SetOutput(output, xla::ConvertElementType(wide, type));
}

// For CPUs: a call of the kernel; the lowering where a size is known at run time alone.
// XLA for CPUs fuses what a lowered operation reads into it, and so computes it again in
// each operation that reads it. A call reads it from memory.
template <class Op, class Lowering>
class CallOrLowering : public tensorflow::XlaOpKernel {
 public:
  explicit CallOrLowering(tensorflow::OpKernelConstruction* ctx)
      : XlaOpKernel(ctx), call_(ctx), lowering_(ctx) {}

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    if (HasStaticInputs(ctx)) {
      call_.Compile(ctx);
    } else {
      lowering_.Compile(ctx);
    }
  }

 private:
  static bool HasStaticInputs(tensorflow::XlaOpKernelContext* ctx) {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const auto shape = ctx->InputXlaShape(i);
      if (!shape.ok() || !shape->is_static()) return false;
    }
    return true;
  }

  XlaOpKernelOf<Op> call_;
  Lowering lowering_;
};

}  // namespace keras_mp

// Not REGISTER_XLA_OP, which has no effect after the first op has run.
#define KERAS_MP_REGISTER_LOWERING(name, kernel)                                 \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" name).Device("XLA_CPU_JIT"), kernel); \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" name).Device("XLA_GPU_JIT"), kernel)

// The same on GPUs, and CallOrLowering on CPUs.
#define KERAS_MP_REGISTER_CALL_OR_LOWERING(Op, Lowering)                     \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device("XLA_GPU_JIT"), Lowering); \
  [[maybe_unused]] const bool is_##Op##_called_on_cpu =                     \
      RegisterCall<Op, CpuDevice, CallOrLowering<Op, Lowering>>()

#endif  // KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_
