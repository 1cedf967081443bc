// The XLA custom call of a handler, and operands and results of it whose batch has a size
// that is known at run time alone: a handler takes static shapes.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace keras_mp {

// Builds a custom call.
class CustomCall {
 public:
  explicit CustomCall(xla::XlaBuilder* builder) : builder_(builder) {}

  void AddOperand(xla::XlaOp operand) { operands_.push_back(operand); }

  void AddResult(xla::PrimitiveType type, const std::vector<std::int64_t>& sizes) {
    results_.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(type, sizes));
  }

  // Adds an operand that is written to, and the result that aliases it.
  absl::Status AddVariable(xla::XlaOp value) {
    const auto shape = builder_->GetShape(value);
    TF_RETURN_IF_ERROR(shape.status());
    aliases_.emplace_back();
    aliases_.back().first.push_back(static_cast<std::int64_t>(results_.size()));
    aliases_.back().second.first = static_cast<std::int64_t>(operands_.size());
    AddResult(shape->element_type(),
              {shape->dimensions().begin(), shape->dimensions().end()});
    AddOperand(value);
    return absl::OkStatus();
  }

  // Builds the call of a handler and returns its results. `attributes`: in MLIR's syntax.
  absl::StatusOr<std::vector<xla::XlaOp>> Make(const std::string& target,
                                               const std::string& attributes) const {
    std::vector<xla::Shape> shapes;
    for (xla::XlaOp operand : operands_) {
      const auto shape = builder_->GetShape(operand);
      TF_RETURN_IF_ERROR(shape.status());
      shapes.push_back(*shape);
      xla::LayoutUtil::SetToDefaultLayout(&shapes.back());
    }
    const xla::XlaOp call = xla::CustomCallWithLayout(
        builder_, target, operands_, xla::ShapeUtil::MakeTupleShape(results_), shapes,
        "{" + attributes + "}", /*has_side_effect=*/false, aliases_,
        /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    std::vector<xla::XlaOp> results;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      results.push_back(xla::GetTupleElement(call, static_cast<std::int64_t>(i)));
    }
    return results;
  }

 private:
  xla::XlaBuilder* builder_;
  std::vector<xla::XlaOp> operands_;
  std::vector<xla::Shape> results_;
  std::vector<std::pair<xla::ShapeIndex, std::pair<std::int64_t, xla::ShapeIndex>>>
      aliases_;
};

// Where the first dimension of an operand is dynamic, fills it with zeros up to its bound,
// and sets `size` to its size. Refuses any other dynamic dimension, and that one unless
// `has_batch`. `what` names the op in the error.
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

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_
