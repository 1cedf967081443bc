// Types and shapes of the buffers that XLA FFI hands to a handler.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_BUFFERS_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_BUFFERS_H_

#include "absl/types/span.h"
#include "common/xla_ffi.h"
#include "keras_mp/data_type.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"

namespace keras_mp {

// FP16, bfloat16, or else FP32.
inline DataType TypeOf(const xla::ffi::AnyBuffer& buffer) {
  if (buffer.element_type() == xla::ffi::F16) return DataType::kHalf;
  if (buffer.element_type() == xla::ffi::BF16) return DataType::kBfloat16;
  return DataType::kFloat;
}

// DT_INVALID for any but these three.
inline tensorflow::DataType TensorFlowTypeOf(xla::ffi::DataType type) {
  if (type == xla::ffi::F16) return tensorflow::DT_HALF;
  if (type == xla::ffi::BF16) return tensorflow::DT_BFLOAT16;
  return type == xla::ffi::F32 ? tensorflow::DT_FLOAT : tensorflow::DT_INVALID;
}

inline tensorflow::TensorShape ShapeOf(const xla::ffi::AnyBuffer& buffer) {
  const auto sizes = buffer.dimensions();
  return tensorflow::TensorShape(absl::MakeConstSpan(sizes.begin(), sizes.size()));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_BUFFERS_H_
