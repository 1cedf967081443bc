// The functions of keras_mp/update_cuda.h: launches of the kernels of
// cuda/update/kernels.cuh, where their formulas, layouts and tests are described.

#include "keras_mp/update_cuda.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/update_forms.h"
#include "cuda/common/error_text.h"
#include "cuda/common/stream_launcher.h"
#include "cuda/update/launch.h"

namespace keras_mp {
namespace {

using Launcher = cuda::StreamLauncher<cuda::kThreads>;

constexpr Status kNegativeCount = {StatusCode::kInvalidArgument,
                                   "a count must not be negative"};
constexpr Status kNoNorms = {StatusCode::kUnimplemented,
                             "the CUDA kernel has no rule that needs norms of variables"};
constexpr Status kNoPowers = {StatusCode::kUnimplemented,
                              "the CUDA kernel takes no powers of sparse gradients"};

}  // namespace

bool IsUpdateCudaAvailable(const char** why) {
  // Fails where the build has no code for this device, or the driver is too old for it.
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(cuda::SumKernel));
  if (why != nullptr) *why = error == cudaSuccess ? "" : cuda::ErrorText(error);
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
  Launcher launcher(stream);
  cuda::LaunchCheck(check, to, static_cast<double*>(workspace), launcher);
  return launcher.status();
}

Status SyncMastersFromWeightsCuda(const MasterPair* pairs, std::int64_t count,
                                  Rounding rounding, void* stream) {
  if (count < 0) return kNegativeCount;
  Launcher launcher(stream);
  cuda::LaunchSyncMasters(pairs, count, rounding, launcher);
  return launcher.status();
}

Status CastMastersCuda(const MasterPair* pairs, std::int64_t count,
                       const float* const* uniforms, void* stream) {
  if (count < 0) return kNegativeCount;
  Launcher launcher(stream);
  cuda::LaunchCast(pairs, count, uniforms, launcher);
  return launcher.status();
}

Status UpdateCuda(const Update& update, void* stream) {
  if (update.count < 0) return kNegativeCount;
  if (NeedsNorms(update.rule)) return kNoNorms;
  if (HasPowers(update)) return kNoPowers;
  const Status forms = CheckForms(update);
  if (!forms.ok()) return forms;
  Launcher launcher(stream);
  cuda::LaunchUpdate(update, launcher);
  return launcher.status();
}

}  // namespace keras_mp
