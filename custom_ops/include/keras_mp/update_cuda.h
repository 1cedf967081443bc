// The update step of update.h on a CUDA device: the bits of update_cpu.h, but for the sum
// of squares, for what a NaN carries, and where a CPU flushes numbers below 2^-126 to
// zero. Nothing waits: the work is put on `stream` (a cudaStream_t) of the current device,
// and the lists may go when a function returns.

#ifndef KERAS_MP_UPDATE_CUDA_H_
#define KERAS_MP_UPDATE_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

// Whether the kernels can run on the current device; if not, `why` (where not null) gets
// a text that says why.
bool IsUpdateCudaAvailable(const char** why = nullptr);

// Bytes of scratch memory on the device, aligned to 8, that a check needs: none unless
// it sums squares.
std::size_t CheckWorkspaceBytes(const GradientCheck& check);

Status CheckGradientsCuda(const GradientCheck& check, void* workspace, void* stream);

// The same, and to[i] = gradients[i] / scale. An FP32 gradient may be written in place.
Status UnscaleGradientsCuda(const GradientCheck& check, float* const* to,
                            void* workspace, void* stream);

// master = weight where the weight is not a rounding of the master.
Status FollowWeightsCuda(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                         void* stream);

// weight = round(master). `uniforms`: [count] arrays for stochastic rounding, else null.
Status CastMastersCuda(const MasterPair* pairs, std::int64_t count,
                       const float* const* uniforms, void* stream);

Status UpdateCuda(const Update& update, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_CUDA_H_
