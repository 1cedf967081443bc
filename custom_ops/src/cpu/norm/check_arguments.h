// The argument checks of the kernels on rows and channels, and of the instruction set.

#ifndef KERAS_MP_SRC_CPU_NORM_CHECK_ARGUMENTS_H_
#define KERAS_MP_SRC_CPU_NORM_CHECK_ARGUMENTS_H_

#include <cstdint>

#include "common/check_rows.h"
#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

inline Status CheckRows(std::int64_t rows, std::int64_t size, DataType type, Isa isa) {
  const Status status = CheckRows(rows, size, type);
  if (!status.ok()) return status;
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_CHECK_ARGUMENTS_H_
