// The update step of update.h on a CPU. Nothing here depends on the threads, and but for
// the sum of squares nothing on `isa`.

#ifndef KERAS_MP_UPDATE_CPU_H_
#define KERAS_MP_UPDATE_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

Status CheckGradientsCpu(const GradientCheck& check, const Parallel& parallel = {},
                         Isa isa = ChosenIsa());

// The same, and to[i] = gradients[i] / scale. An FP32 gradient may be written in place.
Status UnscaleGradientsCpu(const GradientCheck& check, float* const* to,
                           const Parallel& parallel = {}, Isa isa = ChosenIsa());

// master = weight where the weight is not a rounding of the master.
Status FollowWeightsCpu(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                        const Parallel& parallel = {}, Isa isa = ChosenIsa());

// weight = round(master). `uniforms`: [count] arrays for stochastic rounding, else null.
Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel = {},
                      Isa isa = ChosenIsa());

Status UpdateCpu(const Update& update, const Parallel& parallel = {},
                 Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_CPU_H_
