// The tensors and attributes of the ops of logits, checked.

#ifndef KERAS_MP_TENSORFLOW_LOGITS_ARGUMENTS_H_
#define KERAS_MP_TENSORFLOW_LOGITS_ARGUMENTS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "keras_mp/logit_statistics.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace keras_mp {

struct LogitAttributes {
  bool transpose = false;
  float soft_cap = 0;
};

template <class Context>
absl::Status GetLogitAttributes(Context* ctx, LogitAttributes* attributes) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("transpose", &attributes->transpose));
  return ctx->GetAttr("soft_cap", &attributes->soft_cap);
}

// The shapes of the inputs that both ops begin with; `biases` are those of the op, of which
// there is at most one.
struct LogitShapes {
  tensorflow::TensorShape inputs, kernel, targets;
  std::vector<tensorflow::TensorShape> biases;
};

inline absl::Status MakeLogits(const LogitShapes& shapes, bool has_labels,
                               const LogitAttributes& attributes,
                               tensorflow::DataType type, tensorflow::DataType kernel_type,
                               LinearLogits* l) {
  using tensorflow::TensorShape;
  const int words = attributes.transpose ? 0 : 1;
  bool fits = shapes.inputs.dims() == 2 && shapes.kernel.dims() == 2 &&
              shapes.kernel.dim_size(1 - words) == shapes.inputs.dim_size(1);
  if (fits) {
    l->rows = shapes.inputs.dim_size(0);
    l->size = shapes.inputs.dim_size(1);
    l->words = shapes.kernel.dim_size(words);
    fits = shapes.targets == (has_labels ? TensorShape({l->rows})
                                         : TensorShape({l->rows, l->words})) &&
           (shapes.biases.empty() || (shapes.biases.size() == 1 &&
                                      shapes.biases[0] == TensorShape({l->words})));
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "inputs must be [rows, size], kernel [size, words] or with transpose [words, "
        "size], targets [rows] of int32 or [rows, words] of float, and there is at most "
        "one bias [words]. Received: inputs.shape=",
        shapes.inputs.DebugString(), ", kernel.shape=", shapes.kernel.DebugString(),
        ", targets.shape=", shapes.targets.DebugString(), ", ", shapes.biases.size(),
        " biases",
        shapes.biases.empty() ? "" : ", the first of shape ",
        shapes.biases.empty() ? "" : shapes.biases[0].DebugString(),
        ", transpose=", attributes.transpose));
  }
  if (!(attributes.soft_cap >= 0 && std::isfinite(attributes.soft_cap))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "soft_cap must be finite and above 0, or 0 for none. Received: soft_cap=",
        attributes.soft_cap));
  }
  if (kernel_type != type && kernel_type != tensorflow::DT_FLOAT) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kernel must have the type of the inputs, or float. Received: ",
        tensorflow::DataTypeString(kernel_type), " for ",
        tensorflow::DataTypeString(type)));
  }
  l->type = TypeOf(type);
  l->kernel_type = TypeOf(kernel_type);
  l->transpose = attributes.transpose;
  l->soft_cap = attributes.soft_cap;
  return absl::OkStatus();
}

// `data`: labels or targets.
inline void SetTargets(const void* data, bool has_labels, LinearLogits* l) {
  if (has_labels) {
    l->labels = static_cast<const std::int32_t*>(data);
  } else {
    l->targets = static_cast<const float*>(data);
  }
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_LOGITS_ARGUMENTS_H_
