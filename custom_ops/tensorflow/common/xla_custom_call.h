// The XLA custom call of a handler that is registered with XLA FFI.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

inline std::string Attribute(const char* name, bool value) {
  return absl::StrCat(name, " = ", value ? "true" : "false");
}

// As its bits, which say infinities too.
inline std::string Attribute(const char* name, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return absl::StrCat(name, " = 0x", absl::Hex(bits, absl::kZeroPad8), " : f32");
}

inline std::string Attribute(const char* name, const std::vector<std::int64_t>& values) {
  return absl::StrCat(name, " = array<i64", values.empty() ? "" : ": ",
                      absl::StrJoin(values, ", "), ">");
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_CUSTOM_CALL_H_
