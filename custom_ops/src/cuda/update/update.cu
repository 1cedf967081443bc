// The functions of keras_mp/update_cuda.h: launches of the kernels of
// cuda/update/kernels.cuh, where their formulas, layouts and tests are described.

#include "keras_mp/update_cuda.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/update_forms.h"
#include "cuda/update/launch.h"

namespace keras_mp {
namespace {

// Launches kernels on a stream (see cuda/update/launch.h). Does not query or clear errors
// of earlier work.
class StreamLauncher {
 public:
  explicit StreamLauncher(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Arguments>
  bool Run(void (*kernel)(Arguments), int blocks, std::size_t shared_bytes,
           Arguments arguments) {
    static_assert(sizeof(Arguments) <= 4096);
    void* pointers[] = {&arguments};
    return Record(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                   dim3(static_cast<unsigned>(blocks)),
                                   dim3(cuda::kThreads), pointers, shared_bytes,
                                   stream_));
  }

  bool Clear(void* pointer, std::size_t bytes) {
    return Record(cudaMemsetAsync(pointer, 0, bytes, stream_));
  }

  Status status() const {
    if (error_ == cudaSuccess) return {};
    return {StatusCode::kInternal, cudaGetErrorString(error_)};
  }

 private:
  bool Record(cudaError_t error) {
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
  // Fails where the build has no code for this device, or the driver is too old for it.
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(cuda::SumKernel));
  if (why != nullptr) *why = error == cudaSuccess ? "" : cudaGetErrorString(error);
  return error == cudaSuccess;
}

std::size_t CheckWorkspaceBytes(const GradientCheck& check) {
  if (check.sum_of_squares == nullptr) return 0;
  return static_cast<std::size_t>(cuda::ChunksOf(check)) * sizeof(double);
}

Status CheckGradientsCuda(const GradientCheck& check, void* workspace, void* stream) {
  return UnscaleGradientsCuda(check, nullptr, workspace, stream);
}

Status UnscaleGradientsCuda(const GradientCheck& check, float* const* to,
                            void* workspace, void* stream) {
  if (check.count < 0) return kNegativeCount;
  StreamLauncher launcher(stream);
  cuda::LaunchCheck(check, to, static_cast<double*>(workspace), launcher);
  return launcher.status();
}

Status SyncMastersFromWeightsCuda(const MasterPair* pairs, std::int64_t count,
                                  Rounding rounding, void* stream) {
  if (count < 0) return kNegativeCount;
  StreamLauncher launcher(stream);
  cuda::LaunchSyncMasters(pairs, count, rounding, launcher);
  return launcher.status();
}

Status CastMastersCuda(const MasterPair* pairs, std::int64_t count,
                       const float* const* uniforms, void* stream) {
  if (count < 0) return kNegativeCount;
  StreamLauncher launcher(stream);
  cuda::LaunchCast(pairs, count, uniforms, launcher);
  return launcher.status();
}

Status UpdateCuda(const Update& update, void* stream) {
  if (update.count < 0) return kNegativeCount;
  const Status forms = CheckForms(update);
  if (!forms.ok()) return forms;
  StreamLauncher launcher(stream);
  cuda::LaunchUpdate(update, launcher);
  return launcher.status();
}

}  // namespace keras_mp
