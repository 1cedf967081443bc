// The visitors that the class of an op shows its attributes, in Visit: one reads them from
// the op, one from an XLA call, and one writes them into a call.

#ifndef KERAS_MP_TENSORFLOW_COMMON_VISIT_ATTRIBUTES_H_
#define KERAS_MP_TENSORFLOW_COMMON_VISIT_ATTRIBUTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"
#include "xla/ffi/api/ffi.h"

namespace keras_mp {

// `Context` is that of a kernel's construction, or of a shape function.
template <class Context>
class FromOp {
 public:
  explicit FromOp(Context* ctx) : ctx_(ctx) {}

  template <class Value>
  void operator()(const char* name, Value* value) {
    status_.Update(ctx_->GetAttr(name, value));
  }

  // REGISTER_OP has its default.
  template <class Value>
  void Optional(const char* name, Value* value) {
    (*this)(name, value);
  }

  // What the op says otherwise: ReadOp reads it.
  template <class Value>
  void OfCall(const char*, Value*) {}

  const absl::Status& status() const { return status_; }

 private:
  Context* ctx_;
  absl::Status status_;
};

class FromCall {
 public:
  explicit FromCall(const xla::ffi::Dictionary& given) : given_(given) {}

  template <class Value>
  void operator()(const char* name, Value* value) {
    const auto found = given_.get<Value>(name);
    if (Check(name, found.has_value())) *value = *found;
  }

  void operator()(const char* name, std::vector<std::int64_t>* values) {
    ReadIntegers(name, values);
  }

  void operator()(const char* name, std::string* text) {
    const auto found = given_.get<std::string_view>(name);
    if (Check(name, found.has_value())) text->assign(*found);
  }

  // The call has no lists of booleans, but of 0 and 1.
  void operator()(const char* name, std::vector<bool>* values) {
    ReadIntegers(name, values);
  }

  // A call that an earlier version wrote lacks it.
  template <class Value>
  void Optional(const char* name, Value* value) {
    if (given_.contains(name)) (*this)(name, value);
  }

  template <class Value>
  void OfCall(const char* name, Value* value) {
    (*this)(name, value);
  }

  const absl::Status& status() const { return status_; }

 private:
  template <class Values>
  void ReadIntegers(const char* name, Values* values) {
    const auto found = given_.get<xla::ffi::Span<const std::int64_t>>(name);
    if (Check(name, found.has_value())) values->assign(found->begin(), found->end());
  }

  bool Check(const char* name, bool is_found) {
    if (!is_found) {
      status_.Update(absl::InvalidArgumentError(absl::StrCat(
          "the call must have the attribute ", name,
          ", of its type. Received: none, or one of another type")));
    }
    return is_found;
  }

  const xla::ffi::Dictionary& given_;
  absl::Status status_;
};

// Writes them in MLIR's syntax.
class ToCall {
 public:
  void operator()(const char* name, const bool* value) {
    Append(name, *value ? "true" : "false");
  }

  void operator()(const char* name, const std::int64_t* value) {
    Append(name, absl::StrCat(*value, " : i64"));
  }

  void operator()(const char* name, const std::string* text) {
    Append(name, absl::StrCat("\"", *text, "\""));
  }

  // As its bits, which say infinities too.
  void operator()(const char* name, const float* value) {
    std::uint32_t bits;
    std::memcpy(&bits, value, sizeof bits);
    Append(name, absl::StrCat("0x", absl::Hex(bits, absl::kZeroPad8), " : f32"));
  }

  void operator()(const char* name, const std::vector<std::int64_t>* values) {
    Append(name, absl::StrCat("array<i64", values->empty() ? "" : ": ",
                              absl::StrJoin(*values, ", "), ">"));
  }

  void operator()(const char* name, const std::vector<bool>* values) {
    const std::vector<std::int64_t> integers(values->begin(), values->end());
    (*this)(name, &integers);
  }

  template <class Value>
  void Optional(const char* name, Value* value) {
    (*this)(name, value);
  }

  template <class Value>
  void OfCall(const char* name, Value* value) {
    (*this)(name, value);
  }

  const std::string& text() const { return text_; }

 private:
  void Append(const char* name, const std::string& value) {
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", name, " = ", value);
  }

  std::string text_;
};

// Reads the attributes of an op into an object of its class.
template <class Op, class Context>
absl::Status ReadAttributes(Context* ctx, Op* op) {
  FromOp<Context> visit(ctx);
  op->Visit(visit);
  TF_RETURN_IF_ERROR(visit.status());
  TF_RETURN_IF_ERROR(op->ReadOp(ctx));
  return op->Complete();
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_VISIT_ATTRIBUTES_H_
