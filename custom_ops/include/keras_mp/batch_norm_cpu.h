// The functions of batch_norm.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_BATCH_NORM_CPU_H_
#define KERAS_MP_BATCH_NORM_CPU_H_

#include "keras_mp/batch_norm.h"
#include "keras_mp/cpu.h"

namespace keras_mp {

// The results depend on `isa` to the last bit, and never on the number of threads.
Status BatchNormCpu(const BatchNorm& norm, const Parallel& parallel = {},
                    Isa isa = ChosenIsa());
Status BatchNormGradientCpu(const BatchNormGradient& gradient,
                            const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_BATCH_NORM_CPU_H_
