// The update step of update.h on a CUDA device. The results have the bits of
// update_cpu.h, except for the sum of squares, the payload of NaNs, and where a CPU
// flushes numbers below 2^-126 to zero. The functions are asynchronous: they put the work
// on `stream` (a cudaStream_t) of the current device, and the lists may be freed when
// they return.

#ifndef KERAS_MP_UPDATE_CUDA_H_
#define KERAS_MP_UPDATE_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

// Returns whether the kernels can run on the current device. If not, `why` gets the
// reason unless it is null.
bool IsUpdateCudaAvailable(const char** why = nullptr);

// Bytes of scratch memory on the device, aligned to 8, that a check needs: 0 unless it
// computes the sum of squares.
std::size_t CheckWorkspaceBytes(const GradientCheck& check);

Status CheckGradientsCuda(const GradientCheck& check, void* workspace, void* stream);

// The same, and to[i] = gradients[i] / scale in FP32. to[i] may be an FP32 gradients[i].
Status UnscaleGradientsCuda(const GradientCheck& check, float* const* to,
                            void* workspace, void* stream);

// master = weight where the weight is not a rounding of the master: where something else
// than CastMasters or Update wrote the weight.
Status SyncMastersFromWeightsCuda(const MasterPair* pairs, std::int64_t count,
                                  Rounding rounding, void* stream);

// weight = round(master): stochastically with `uniforms`, [count] arrays of the sizes of
// the pairs, or to nearest even where it is null.
Status CastMastersCuda(const MasterPair* pairs, std::int64_t count,
                       const float* const* uniforms, void* stream);

// A rule that needs norms is kUnimplemented.
Status UpdateCuda(const Update& update, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_CUDA_H_
