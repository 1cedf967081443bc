// Tensors as the arguments of update.h, and checks that several ops of the update step
// make.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_TENSORS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_TENSORS_H_

#include <cstdint>

#include "common/tensor_view.h"
#include "keras_mp/update.h"

namespace keras_mp {

inline Gradient GradientOf(const TensorView& tensor) {
  return {tensor.shape.num_elements(), tensor.type(), tensor.data};
}

// `weight`: null where the master is a weight itself.
inline MasterPair PairOf(const TensorView& master, const TensorView* weight) {
  MasterPair pair;
  pair.size = master.shape.num_elements();
  if (master.dtype == tensorflow::DT_FLOAT) {
    pair.master = master.As<float>();
  } else if (master.dtype == tensorflow::DT_INT16) {
    pair.remainder = master.As<std::int16_t>();
  } else if (master.dtype == tensorflow::DT_INT8) {
    pair.short_remainder = master.As<std::int8_t>();
  } else {
    weight = &master;
  }
  if (weight == nullptr) return pair;
  pair.type = weight->type();
  pair.weight = weight->As<std::uint16_t>();
  return pair;
}

inline absl::Status CheckGradientType(int i, const TensorView& gradient) {
  if (Has16Bits(gradient.dtype) || gradient.dtype == tensorflow::DT_FLOAT) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a gradient must be half, bfloat16 or float. Received: gradient ", i,
                   " of ", DataTypeString(gradient.dtype)));
}

// The error of the i-th tensor of a name.
inline absl::Status DoesNotFit(const char* name, int i, const TensorView& tensor,
                               const TensorView& master) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", i, " must fit the master. Received: ",
                   tensor.DebugString(), " for ", master.DebugString()));
}

// Checks that it has the shape of its master,
inline absl::Status CheckShape(const char* name, int i, const TensorView& tensor,
                               const TensorView& master) {
  if (tensor.shape == master.shape) return absl::OkStatus();
  return DoesNotFit(name, i, tensor, master);
}

// and is FP32,
inline absl::Status CheckFp32(const char* name, int i, const TensorView& tensor,
                              const TensorView& master) {
  if (tensor.dtype != tensorflow::DT_FLOAT) return DoesNotFit(name, i, tensor, master);
  return CheckShape(name, i, tensor, master);
}

// or has 16 bits.
inline absl::Status CheckWeight(int i, const TensorView& weight,
                                const TensorView& master) {
  if (!Has16Bits(weight.dtype)) return DoesNotFit("weight", i, weight, master);
  return CheckShape("weight", i, weight, master);
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_TENSORS_H_
