// The functions of depthwise_conv.h on a CUDA device. All pointers are to device memory.
// The functions are asynchronous: they put the work on `stream` (a cudaStream_t) of the
// current device. Each run gives the same bits.

#ifndef KERAS_MP_DEPTHWISE_CONV_CUDA_H_
#define KERAS_MP_DEPTHWISE_CONV_CUDA_H_

#include <cstddef>

#include "keras_mp/depthwise_conv.h"
#include "keras_mp/status.h"

namespace keras_mp {

// `bias`: in `bias_type`, `type` or kFloat; null for none. `y`: in `y_type`, `type` or
// kFloat.
Status DepthwiseConvCuda(const DepthwiseConv& conv, const void* x, const void* kernel,
                         const void* bias, DataType bias_type, void* y, DataType y_type,
                         void* stream);
Status DepthwiseConvGradXCuda(const DepthwiseConv& conv, const void* kernel,
                              const void* grad_y, void* grad_x, void* stream);

// Bytes of scratch memory on the device, aligned to 8, that the gradient of the kernel
// needs.
std::size_t DepthwiseConvGradKernelWorkspaceBytes(const DepthwiseConv& conv);

Status DepthwiseConvGradKernelCuda(const DepthwiseConv& conv, const void* x,
                                   const void* grad_y, float* grad_kernel,
                                   void* workspace, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_DEPTHWISE_CONV_CUDA_H_
