// The update step of update.h on a CPU. No result depends on the number of threads, and
// only the sum of squares depends on the instruction set `isa`.

#ifndef KERAS_MP_UPDATE_CPU_H_
#define KERAS_MP_UPDATE_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

Status CheckGradientsCpu(const GradientCheck& check, const Parallel& parallel = {},
                         Isa isa = ChosenIsa());

// The same, and to[i] = gradients[i] / scale in FP32. to[i] may be an FP32 gradients[i].
Status UnscaleGradientsCpu(const GradientCheck& check, float* const* to,
                           const Parallel& parallel = {}, Isa isa = ChosenIsa());

// master = weight where the weight is not a rounding of the master: where something else
// than CastMasters or Update wrote the weight.
Status SyncMastersFromWeightsCpu(const MasterPair* pairs, std::int64_t count,
                                 Rounding rounding, const Parallel& parallel = {},
                                 Isa isa = ChosenIsa());

// weight = round(master): stochastically with `uniforms`, [count] arrays of the sizes of
// the pairs, or to nearest even where it is null.
Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel = {},
                      Isa isa = ChosenIsa());

Status UpdateCpu(const Update& update, const Parallel& parallel = {},
                 Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_CPU_H_
