// The functions of depthwise_conv.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_DEPTHWISE_CONV_CPU_H_
#define KERAS_MP_DEPTHWISE_CONV_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/depthwise_conv.h"
#include "keras_mp/status.h"

namespace keras_mp {

// `bias`: in `bias_type`, `type` or kFloat; null for none. `y`: in `y_type`, `type` or
// kFloat. The results depend on `isa` to the last bit, and never on the number of threads.
Status DepthwiseConvCpu(const DepthwiseConv& conv, const void* x, const void* kernel,
                        const void* bias, DataType bias_type, void* y, DataType y_type,
                        const Parallel& parallel = {}, Isa isa = ChosenIsa());
Status DepthwiseConvGradXCpu(const DepthwiseConv& conv, const void* kernel,
                             const void* grad_y, void* grad_x,
                             const Parallel& parallel = {}, Isa isa = ChosenIsa());
Status DepthwiseConvGradKernelCpu(const DepthwiseConv& conv, const void* x,
                                  const void* grad_y, float* grad_kernel,
                                  const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_DEPTHWISE_CONV_CPU_H_
