// The functions of row_norm_cuda.h, softmax_cuda.h and sum_cuda.h: launches of the kernels
// of cuda/norm, where their formulas, layouts and tests are described.

#include <algorithm>

#include "common/check_rows.h"
#include "cuda/common/stream_launcher.h"
#include "cuda/norm/launch.h"
#include "keras_mp/row_norm_cuda.h"
#include "keras_mp/softmax_cuda.h"
#include "keras_mp/sum_cuda.h"

namespace keras_mp {
namespace {

// Calls launch(launcher) if the arguments are valid.
template <class Launch>
Status Launched(std::int64_t rows, std::int64_t size, DataType type, void* stream,
                const Launch& launch) {
  const Status status = CheckRows(rows, size, type);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  launch(launcher);
  return launcher.status();
}

}  // namespace

Status RowNormCuda(const RowNorm& norm, void* stream) {
  return Launched(norm.rows, norm.size, norm.type, stream,
                  [&](auto& launcher) { cuda::LaunchRowNorm(norm, launcher); });
}

std::size_t RowNormGradientWorkspaceBytes(const RowNormGradient& gradient) {
  return cuda::WorkspaceFloats(gradient) * sizeof(float);
}

Status RowNormGradientCuda(const RowNormGradient& gradient, void* workspace,
                           void* stream) {
  return Launched(gradient.rows, gradient.size, gradient.type, stream,
                  [&](auto& launcher) {
                    cuda::LaunchRowNormGradient(
                        gradient, static_cast<float*>(workspace), launcher);
                  });
}

Status SoftmaxCuda(const Softmax& softmax, void* stream) {
  return Launched(softmax.rows, softmax.size, softmax.type, stream,
                  [&](auto& launcher) { cuda::LaunchSoftmax(softmax, launcher); });
}

Status SoftmaxGradientCuda(const SoftmaxGradient& gradient, void* stream) {
  return Launched(
      gradient.rows, gradient.size, gradient.type, stream,
      [&](auto& launcher) { cuda::LaunchSoftmaxGradient(gradient, launcher); });
}

Status FloatSoftmaxGradientCuda(const FloatSoftmaxGradient& gradient, void* stream) {
  return Launched(
      gradient.rows, gradient.size, gradient.type, stream,
      [&](auto& launcher) { cuda::LaunchFloatSoftmaxGradient(gradient, launcher); });
}

std::size_t SumWorkspaceBytes(const Sum& sum) {
  return cuda::WorkspaceFloats(sum) * sizeof(float);
}

Status SumCuda(const Sum& sum, void* workspace, void* stream) {
  return Launched(std::min(sum.outer, sum.inner), sum.count, sum.type, stream,
                  [&](auto& launcher) {
                    cuda::LaunchSum(sum, static_cast<float*>(workspace), launcher);
                  });
}

}  // namespace keras_mp
