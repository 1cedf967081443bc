// The status that a kernel returns. Kernels throw and print nothing.

#ifndef KERAS_MP_STATUS_H_
#define KERAS_MP_STATUS_H_

namespace keras_mp {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller's mistake
  kUnimplemented,    // by this route or machine; another may have it
  kOutOfMemory,
  kInternal,  // CUDA or cuBLASLt failed
};

struct Status {
  StatusCode code = StatusCode::kOk;
  const char* message = "";  // static text

  bool ok() const { return code == StatusCode::kOk; }
};

}  // namespace keras_mp

#endif  // KERAS_MP_STATUS_H_
