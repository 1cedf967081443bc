// Operands of an XLA custom call whose batch may have a size that is known at run time
// alone. A handler takes static shapes.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_

#include "absl/strings/str_cat.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace keras_mp {

// Gives an operand its largest size: where the first dimension has a dynamic one, which
// `size` becomes, with zeros at the end. No other dimension may have one, and that one
// neither unless `has_batch`. `what` names the op in the error.
inline absl::Status MakeStatic(const char* what, bool has_batch, xla::XlaOp* operand,
                               xla::XlaOp* size) {
  auto* builder = operand->builder();
  const auto shape = builder->GetShape(*operand);
  TF_RETURN_IF_ERROR(shape.status());
  const int first_static = has_batch ? 1 : 0;
  for (int d = first_static; d < static_cast<int>(shape->dimensions().size()); ++d) {
    if (shape->is_static_dimension(d)) continue;
    return absl::UnimplementedError(
        absl::StrCat("of ", what, " XLA may find the size of the batch at run time, but "
                     "no other size"));
  }
  if (!shape->is_dynamic()) return absl::OkStatus();
  *size = xla::GetDimensionSize(*operand, 0);
  const xla::XlaOp all = xla::RemoveDynamicDimension(*operand, 0);
  xla::Shape indices = xla::ShapeUtil::ChangeElementType(*shape, xla::S32);
  indices.clear_dynamic_dimensions();
  const xla::XlaOp is_given = xla::Lt(xla::Iota(builder, indices, 0), *size);
  *operand = xla::Select(is_given, all, xla::ZerosLike(all));
  return absl::OkStatus();
}

// A result of that size, where it is one.
inline xla::XlaOp MakeDynamic(xla::XlaOp result, xla::XlaOp size) {
  return size.valid() ? xla::SetDimensionSize(result, size, 0) : result;
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_
