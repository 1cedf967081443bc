// Shared by the handlers of XLA FFI: the interface, and errors.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_H_

#include <string>

#include "keras_mp/status.h"
#include "xla/ffi/api/ffi.h"

// Declared here, as the header that does needs one of MLIR, which TensorFlow does not
// ship.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_mp {

inline xla::ffi::Error ToError(const Status& status) {
  if (status.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(status.message);
}

// A call need not come from the ops, which check their arguments: a SavedModel may hold
// any module. So each handler checks its buffers.
inline xla::ffi::Error Misfit(const char* call) {
  return xla::ffi::Error::InvalidArgument(
      std::string("the buffers must be those of a call of ") + call +
      ". Received: others");
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_FFI_H_
