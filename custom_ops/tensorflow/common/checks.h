// Checks that the classes of several ops make.

#ifndef KERAS_MP_TENSORFLOW_COMMON_CHECKS_H_
#define KERAS_MP_TENSORFLOW_COMMON_CHECKS_H_

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/tensor_view.h"

namespace keras_mp {

inline absl::Status CheckEpsilon(float epsilon) {
  if (epsilon >= 0) return absl::OkStatus();  // a NaN is not
  return absl::InvalidArgumentError(
      absl::StrCat("epsilon must be 0 or more. Received: epsilon=", epsilon));
}

// Checks that a tensor, which `name` names in the error, has this dtype and shape.
inline absl::Status CheckTensor(const char* name, const TensorView& tensor,
                                tensorflow::DataType dtype,
                                const tensorflow::TensorShape& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be ", DataTypeString(dtype), " ", shape.DebugString(),
                   ". Received: ", tensor.DebugString()));
}

// Checks what a call may have otherwise than an op: so many inputs, the first `halves` of
// one 16-bit dtype, and the others FP32.
inline absl::Status CheckDtypes(const Views& inputs, int halves, std::int64_t count) {
  if (static_cast<std::int64_t>(inputs.size()) != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there must be ", count, " inputs. Received: ", inputs.size()));
  }
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    const bool is_half = i < halves;
    const bool fits = is_half ? Has16Bits(inputs[i].dtype) &&
                                    inputs[i].dtype == inputs[0].dtype
                              : inputs[i].dtype == tensorflow::DT_FLOAT;
    if (fits) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", i, " must be ", is_half ? "half or bfloat16, as the first" : "float",
        ". Received: ", inputs[i].DebugString()));
  }
  return absl::OkStatus();
}

// Checks that the first `alike` inputs have the shape of the first one, and the others
// this.
inline absl::Status CheckShapes(const Views& inputs, int alike,
                                const tensorflow::TensorShape& other) {
  for (int i = 1; i < static_cast<int>(inputs.size()); ++i) {
    const tensorflow::TensorShape& expected = i < alike ? inputs[0].shape : other;
    if (inputs[i].shape == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must have the shape ", expected.DebugString(),
                     ". Received: ", inputs[i].shape.DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_CHECKS_H_
