// The functions of softmax.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_SOFTMAX_CPU_H_
#define KERAS_MP_SOFTMAX_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/softmax.h"
#include "keras_mp/status.h"

namespace keras_mp {

// The results depend on `isa` to the last bit, and never on the number of threads.
Status SoftmaxCpu(const Softmax& softmax, const Parallel& parallel = {},
                  Isa isa = ChosenIsa());
Status SoftmaxGradientCpu(const SoftmaxGradient& gradient, const Parallel& parallel = {},
                          Isa isa = ChosenIsa());
Status FloatSoftmaxGradientCpu(const FloatSoftmaxGradient& gradient,
                               const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_SOFTMAX_CPU_H_
