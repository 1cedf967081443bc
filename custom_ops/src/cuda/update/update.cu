#include "keras_mp/update_cuda.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/update/launch.h"

namespace keras_mp {
namespace {

// Puts kernels on a stream. The errors of earlier work are neither asked for nor cleared.
class OnStream {
 public:
  explicit OnStream(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Arguments>
  bool Run(void (*kernel)(Arguments), int blocks, std::size_t shared_bytes,
           Arguments arguments) {
    static_assert(sizeof(Arguments) <= 4096);
    void* pointers[] = {&arguments};
    return Note(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                 dim3(static_cast<unsigned>(blocks)),
                                 dim3(cuda::kThreads), pointers, shared_bytes, stream_));
  }

  bool Clear(void* pointer, std::size_t bytes) {
    return Note(cudaMemsetAsync(pointer, 0, bytes, stream_));
  }

  Status status() const {
    if (error_ == cudaSuccess) return {};
    return {StatusCode::kInternal, cudaGetErrorString(error_)};
  }

 private:
  bool Note(cudaError_t error) {
    error_ = error;
    return error == cudaSuccess;
  }

  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

constexpr Status kNegativeCount = {StatusCode::kInvalidArgument,
                                   "a count must not be negative"};

}  // namespace

bool IsUpdateCudaAvailable(const char** why) {
  // Asks for code of this device: a build may lack it, or the driver be too old for it.
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(cuda::SumKernel));
  if (why != nullptr) *why = error == cudaSuccess ? "" : cudaGetErrorString(error);
  return error == cudaSuccess;
}

std::size_t CheckWorkspaceBytes(const GradientCheck& check) {
  if (check.squares == nullptr) return 0;
  return static_cast<std::size_t>(cuda::PiecesOf(check)) * sizeof(double);
}

Status CheckGradientsCuda(const GradientCheck& check, void* workspace, void* stream) {
  return UnscaleGradientsCuda(check, nullptr, workspace, stream);
}

Status UnscaleGradientsCuda(const GradientCheck& check, float* const* to,
                            void* workspace, void* stream) {
  if (check.count < 0) return kNegativeCount;
  OnStream launcher(stream);
  cuda::CallCheck(check, to, static_cast<double*>(workspace), launcher);
  return launcher.status();
}

Status FollowWeightsCuda(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                         void* stream) {
  if (count < 0) return kNegativeCount;
  OnStream launcher(stream);
  cuda::CallFollow(pairs, count, rounding, launcher);
  return launcher.status();
}

Status CastMastersCuda(const MasterPair* pairs, std::int64_t count,
                       const float* const* uniforms, void* stream) {
  if (count < 0) return kNegativeCount;
  OnStream launcher(stream);
  cuda::CallCast(pairs, count, uniforms, launcher);
  return launcher.status();
}

Status UpdateCuda(const Update& update, void* stream) {
  if (update.count < 0) return kNegativeCount;
  OnStream launcher(stream);
  cuda::CallUpdate(update, launcher);
  return launcher.status();
}

}  // namespace keras_mp
