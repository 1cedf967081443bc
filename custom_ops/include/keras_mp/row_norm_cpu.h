// The functions of row_norm.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_ROW_NORM_CPU_H_
#define KERAS_MP_ROW_NORM_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/row_norm.h"
#include "keras_mp/status.h"

namespace keras_mp {

// The results depend on `isa` to the last bit, and never on the number of threads.
Status RowNormCpu(const RowNorm& norm, const Parallel& parallel = {},
                  Isa isa = ChosenIsa());
Status RowNormGradientCpu(const RowNormGradient& gradient, const Parallel& parallel = {},
                          Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_ROW_NORM_CPU_H_
