// Types and statuses of the kernels, converted from and to TensorFlow's.

#include "common/status.h"

namespace keras_mp {

DataType TypeOf(tensorflow::DataType type) {
  if (type == tensorflow::DT_HALF) return DataType::kHalf;
  if (type == tensorflow::DT_BFLOAT16) return DataType::kBfloat16;
  return DataType::kFloat;
}

absl::Status ToAbsl(const Status& status) {
  switch (status.code) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message);
    case StatusCode::kUnimplemented:
      return absl::UnimplementedError(status.message);
    case StatusCode::kOutOfMemory:
      return absl::ResourceExhaustedError(status.message);
    case StatusCode::kInternal:
      return absl::InternalError(status.message);
  }
  return absl::InternalError("unknown status");
}

}  // namespace keras_mp
