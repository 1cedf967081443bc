// The statistics of logit_statistics.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_LOGIT_STATISTICS_CPU_H_
#define KERAS_MP_LOGIT_STATISTICS_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/logit_statistics.h"
#include "keras_mp/status.h"

namespace keras_mp {

// The results depend on `isa` to the last bit, and never on the number of threads. Beside
// the workspaces of the products, memory for one block of logits is allocated: 4 MiB, or
// 256 FP32 numbers for each row where that is more; in the gradient another half of it for
// 16-bit inputs, and up to two FP32 gradients of the inputs.
Status LogitStatisticsCpu(const LinearLogits& logits, const LogitStatistics& statistics,
                          const Parallel& parallel = {}, Isa isa = ChosenIsa());
Status LogitStatisticsGradientCpu(const LinearLogits& logits,
                                  const LogitStatisticsGradient& gradient,
                                  const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_LOGIT_STATISTICS_CPU_H_
