// The functions of batch_norm_cuda.h: launches of the kernels of cuda/norm, where their
// formulas, layouts and tests are described.

#include "keras_mp/batch_norm_cuda.h"

#include <algorithm>

#include "common/check_rows.h"
#include "cuda/common/stream_launcher.h"
#include "cuda/norm/batch_norm_launch.h"

namespace keras_mp {
namespace {

Status Check(const ChannelShape& shape, DataType type) {
  return CheckRows(std::min(shape.outer, shape.inner), shape.channels, type);
}

}  // namespace

std::size_t BatchNormWorkspaceBytes(const BatchNorm& norm) {
  return cuda::WorkspaceFloats(norm) * sizeof(float);
}

std::size_t BatchNormGradientWorkspaceBytes(const BatchNormGradient& gradient) {
  return cuda::WorkspaceFloats(gradient) * sizeof(float);
}

Status BatchNormCuda(const BatchNorm& norm, void* workspace, void* stream) {
  const Status status = Check(norm.shape, norm.type);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  cuda::LaunchBatchNorm(norm, static_cast<float*>(workspace), launcher);
  return launcher.status();
}

Status BatchNormGradientCuda(const BatchNormGradient& gradient, void* workspace,
                             void* stream) {
  const Status status = Check(gradient.shape, gradient.type);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  cuda::LaunchBatchNormGradient(gradient, static_cast<float*>(workspace), launcher);
  return launcher.status();
}

}  // namespace keras_mp
