// CudaBackend: the functions of update_cuda.h, put on a given stream.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_CUDA_BACKEND_H_
#define KERAS_MP_TENSORFLOW_UPDATE_CUDA_BACKEND_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "keras_mp/update_cuda.h"

namespace keras_mp {

class CudaBackend {
 public:
  // Allocates device memory for work that is put on the stream from now on. Returns null
  // where there is none.
  using Allocate = std::function<void*(std::size_t bytes)>;

  CudaBackend(void* stream, Allocate allocate)
      : stream_(static_cast<cudaStream_t>(stream)), allocate_(std::move(allocate)) {}

  Status Check(const GradientCheck& check) const { return Unscale(check, nullptr); }
  Status Unscale(const GradientCheck& check, float* const* to) const {
    const std::size_t bytes = CheckWorkspaceBytes(check);
    void* const workspace = bytes > 0 ? allocate_(bytes) : nullptr;
    if (bytes > 0 && workspace == nullptr) {
      return {StatusCode::kOutOfMemory, "no device memory for the sums of squares"};
    }
    return to ? UnscaleGradientsCuda(check, to, workspace, stream_)
              : CheckGradientsCuda(check, workspace, stream_);
  }
  Status SyncMasters(const MasterPair* pairs, std::int64_t count,
                     Rounding rounding) const {
    return SyncMastersFromWeightsCuda(pairs, count, rounding, stream_);
  }
  Status Cast(const MasterPair* pairs, std::int64_t count,
              const float* const* uniforms) const {
    return CastMastersCuda(pairs, count, uniforms, stream_);
  }
  Status Update(const keras_mp::Update& update) const {
    return UpdateCuda(update, stream_);
  }
  Status SetZero(float* number) const {
    return FromCuda(cudaMemsetAsync(number, 0, sizeof *number, stream_));
  }
  Status Copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return {};
    return FromCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }

 private:
  static Status FromCuda(cudaError_t error) {
    if (error == cudaSuccess) return {};
    return {StatusCode::kInternal, cudaGetErrorString(error)};
  }

  cudaStream_t stream_;
  Allocate allocate_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_CUDA_BACKEND_H_
