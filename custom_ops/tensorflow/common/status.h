// Conversions between the types and statuses of TensorFlow and of the kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_STATUS_H_
#define KERAS_MP_TENSORFLOW_COMMON_STATUS_H_

#include "keras_mp/data_type.h"
#include "keras_mp/status.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/status.h"

namespace keras_mp {

// Of half and bfloat16; kFloat for all other types.
DataType TypeOf(tensorflow::DataType type);

absl::Status ToAbsl(const Status& status);

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_STATUS_H_
