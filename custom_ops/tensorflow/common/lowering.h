// The parts of XLA lowerings: an op on 16-bit tensors becomes its formula in FP32 between
// two conversions.

#ifndef KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_
#define KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_

#include <cstdint>

#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
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

inline xla::XlaOp SumOver(tensorflow::XlaOpKernelContext* ctx, xla::XlaOp x,
                          Dimensions dimensions) {
  return xla::Reduce(x, Constant(x, 0), *ctx->GetOrCreateAdd(tensorflow::DT_FLOAT),
                     dimensions);
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

inline absl::Status GetShape(tensorflow::XlaOpKernelContext* ctx, int input,
                             tensorflow::TensorShape* shape) {
  const auto found = ctx->InputXlaShape(input);
  TF_RETURN_IF_ERROR(found.status());
  return tensorflow::XLAShapeToTensorShape(*found, shape);
}

inline absl::Status GetShape(tensorflow::XlaOpKernelContext* ctx, int input, int rank,
                             tensorflow::TensorShape* shape) {
  TF_RETURN_IF_ERROR(GetShape(ctx, input, shape));
  if (shape->dims() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input ", input, " must have ", rank,
                   " dimensions. Received: the shape ", shape->DebugString()));
}

inline absl::Status CheckShape(tensorflow::XlaOpKernelContext* ctx, int input,
                               const tensorflow::TensorShape& expected) {
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx, input, &shape));
  if (shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input ", input, " must have the shape ", expected.DebugString(),
                   ". Received: ", shape.DebugString()));
}

}  // namespace keras_mp

// Not REGISTER_XLA_OP, which has no effect after the first op has run.
#define KERAS_MP_REGISTER_LOWERING(name, kernel)                                 \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" name).Device("XLA_CPU_JIT"), kernel); \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" name).Device("XLA_GPU_JIT"), kernel)

#endif  // KERAS_MP_TENSORFLOW_COMMON_LOWERING_H_
