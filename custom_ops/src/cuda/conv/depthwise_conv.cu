// The functions of depthwise_conv_cuda.h: launches of the kernels of
// cuda/conv/depthwise_conv.cuh, where their layouts and tests are described.

#include "keras_mp/depthwise_conv_cuda.h"

#include "common/convolved_position.h"
#include "cuda/common/stream_launcher.h"
#include "cuda/conv/launch.h"

namespace keras_mp {

Status DepthwiseConvCuda(const DepthwiseConv& conv, const void* x, const void* kernel,
                         const void* bias, DataType bias_type, void* y, DataType y_type,
                         void* stream) {
  const Status status = CheckConv(conv, bias_type, y_type);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  cuda::LaunchDepthwiseConv({conv, x, kernel, bias, bias_type, y, y_type}, launcher);
  return launcher.status();
}

Status DepthwiseConvGradXCuda(const DepthwiseConv& conv, const void* kernel,
                              const void* grad_y, void* grad_x, void* stream) {
  const Status status = CheckConv(conv);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  cuda::LaunchDepthwiseConvGradX(
      {conv, grad_y, kernel, nullptr, DataType::kFloat, grad_x, conv.type}, launcher);
  return launcher.status();
}

std::size_t DepthwiseConvGradKernelWorkspaceBytes(const DepthwiseConv& conv) {
  return cuda::WorkspaceFloats(conv) * sizeof(float);
}

Status DepthwiseConvGradKernelCuda(const DepthwiseConv& conv, const void* x,
                                   const void* grad_y, float* grad_kernel,
                                   void* workspace, void* stream) {
  const Status status = CheckConv(conv);
  if (!status.ok()) return status;
  cuda::StreamLauncher<cuda::kBlock> launcher(stream);
  cuda::LaunchDepthwiseConvGradKernel(conv, x, grad_y, grad_kernel,
                                      static_cast<float*>(workspace), launcher);
  return launcher.status();
}

}  // namespace keras_mp
