// What the class of an op sees of a tensor, wherever it comes from: an input or output of
// an OpKernel, a variable, a buffer of an XLA call, or an input that XLA compiles, which
// has no data.

#ifndef KERAS_MP_TENSORFLOW_COMMON_TENSOR_VIEW_H_
#define KERAS_MP_TENSORFLOW_COMMON_TENSOR_VIEW_H_

#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace keras_mp {

struct TensorView {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  void* data = nullptr;

  template <class Number>
  Number* As() const {
    return static_cast<Number*>(data);
  }

  // For the kernels.
  DataType type() const { return TypeOf(dtype); }

  std::string DebugString() const {
    return absl::StrCat(DataTypeString(dtype), " ", shape.DebugString());
  }
};

// Most ops have so few tensors that a call allocates no list of them.
using Views = absl::InlinedVector<TensorView, 8>;

inline TensorView ViewOf(const tensorflow::Tensor& tensor) {
  return {tensor.dtype(), tensor.shape(), tensor.data()};
}

inline bool Has16Bits(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_TENSOR_VIEW_H_
