// The attention of attention.h on a CPU. All pointers are to host memory.

#ifndef KERAS_MP_ATTENTION_CPU_H_
#define KERAS_MP_ATTENTION_CPU_H_

#include "keras_mp/attention.h"
#include "keras_mp/cpu.h"
#include "keras_mp/status.h"

namespace keras_mp {

// The results depend on `isa` to the last bit, and never on the number of threads. Each
// thread has scratch memory for blocks of 128 queries and keys; in the gradient, also for
// an FP32 gradient of the queries of some heads, up to 32 MiB.
Status AttentionCpu(const Attention& attention, const AttentionResult& result,
                    const Parallel& parallel = {}, Isa isa = ChosenIsa());
Status AttentionGradientCpu(const Attention& attention, const AttentionGradient& gradient,
                            const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_ATTENTION_CPU_H_
