// The argument checks of the kernels on rows and channels, for every device.

#ifndef KERAS_MP_SRC_COMMON_CHECK_ROWS_H_
#define KERAS_MP_SRC_COMMON_CHECK_ROWS_H_

#include <cstdint>

#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

inline Status CheckRows(std::int64_t rows, std::int64_t size, DataType type) {
  if (rows < 0 || size < 0) {
    return {StatusCode::kInvalidArgument, "a size must not be negative"};
  }
  if (type == DataType::kFloat) {
    return {StatusCode::kInvalidArgument, "x must have 16 bits"};
  }
  return {};
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_CHECK_ROWS_H_
