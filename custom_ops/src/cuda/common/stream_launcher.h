// Launches kernels of kThreads threads on a stream, as the launch.h of a folder asks for.
// Does not query or clear errors of earlier work.

#ifndef KERAS_MP_SRC_CUDA_COMMON_STREAM_LAUNCHER_H_
#define KERAS_MP_SRC_CUDA_COMMON_STREAM_LAUNCHER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <limits>

#include "cuda/common/types.h"
#include "keras_mp/status.h"

namespace keras_mp::cuda {

template <int kThreads>
class StreamLauncher {
 public:
  explicit StreamLauncher(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  // Returns whether the launch succeeded. The first failure is the status.
  template <class Arguments>
  bool Run(void (*kernel)(Arguments), Index blocks, std::size_t shared_bytes,
           Arguments arguments) {
    static_assert(sizeof(Arguments) <= 4096);
    if (!status_.ok() || blocks == 0) return status_.ok();
    if (blocks > std::numeric_limits<int>::max()) {
      status_ = {StatusCode::kUnimplemented, "more than 2^31 - 1 blocks of a kernel"};
      return false;
    }
    void* pointers[] = {&arguments};
    return Record(cudaLaunchKernel(
        reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
        dim3(kThreads), pointers, shared_bytes, stream_));
  }

  // Sets bytes to 0. Returns whether it was launched.
  bool Clear(void* pointer, std::size_t bytes) {
    return status_.ok() && Record(cudaMemsetAsync(pointer, 0, bytes, stream_));
  }

  Status status() const { return status_; }

 private:
  bool Record(cudaError_t error) {
    if (error != cudaSuccess) {
      status_ = {StatusCode::kInternal, cudaGetErrorString(error)};
    }
    return status_.ok();
  }

  cudaStream_t stream_;
  Status status_;
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_COMMON_STREAM_LAUNCHER_H_
