// The functions of depthwise_conv_cuda.h as sequences of kernel launches, with a Launcher
// as in cuda/norm/launch.h.

#ifndef KERAS_MP_SRC_CUDA_CONV_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_CONV_LAUNCH_H_

#include <cstddef>

#include "common/ceil_div.h"
#include "cuda/conv/depthwise_conv.cuh"
#include "cuda/norm/launch.h"

namespace keras_mp::cuda {

inline Index ElementsOfX(const DepthwiseConv& conv) {
  const ConvolvedDimension &rows = conv.dimensions[0], &columns = conv.dimensions[1];
  return conv.batch * rows.size * columns.size * conv.channels;
}

inline Index ElementsOfY(const DepthwiseConv& conv) {
  const ConvolvedDimension &rows = conv.dimensions[0], &columns = conv.dimensions[1];
  return conv.batch * rows.result * columns.result * conv.channels;
}

template <class Launcher>
void LaunchDepthwiseConv(const DepthwiseConvArguments& arguments, Launcher& launcher) {
  const auto kernel = WithFormat(arguments.conv.type, [](auto format) {
    return DepthwiseConvKernel<decltype(format)>;
  });
  launcher.Run(kernel, CeilDiv(ElementsOfY(arguments.conv), Index{kBlock}), 0, arguments);
}

template <class Launcher>
void LaunchDepthwiseConvGradX(const DepthwiseConvArguments& arguments,
                              Launcher& launcher) {
  const auto kernel = WithFormat(arguments.conv.type, [](auto format) {
    return DepthwiseConvGradXKernel<decltype(format)>;
  });
  launcher.Run(kernel, CeilDiv(ElementsOfX(arguments.conv), Index{kBlock}), 0, arguments);
}

inline ColumnParts PartsOf(const DepthwiseConv& conv) {
  const ConvolvedDimension &rows = conv.dimensions[0], &columns = conv.dimensions[1];
  // Without columns there are no products.
  const Index rows_of_y = columns.result == 0 ? 0 : conv.batch * rows.result;
  return PartsOf(rows.kernel * columns.kernel, rows_of_y, conv.channels);
}

inline std::size_t WorkspaceFloats(const DepthwiseConv& conv) {
  return static_cast<std::size_t>(PartialsOf(PartsOf(conv)));
}

template <class Launcher>
void LaunchDepthwiseConvGradKernel(const DepthwiseConv& conv, const void* x,
                                   const void* grad_y, float* grad_kernel,
                                   float* workspace, Launcher& launcher) {
  const ColumnParts parts = PartsOf(conv);
  const auto kernel = WithFormat(conv.type, [](auto format) {
    return DepthwiseConvGradKernelKernel<decltype(format)>;
  });
  launcher.Run(kernel, BlocksOf(parts), kColumnSumsSharedBytes,
               DepthwiseConvGradKernelArguments{conv, parts, x, grad_y, workspace});
  LaunchFinish({parts.slices, parts.parts, parts.columns, workspace, 1, grad_kernel},
               launcher);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_CONV_LAUNCH_H_
