// The function of sum.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_SUM_CPU_H_
#define KERAS_MP_SUM_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/sum.h"
#include "keras_mp/status.h"

namespace keras_mp {

// The result depends on `isa` to the last bit, and never on the number of threads.
Status SumCpu(const Sum& sum, const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_SUM_CPU_H_
