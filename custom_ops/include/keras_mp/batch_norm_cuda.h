// The functions of batch_norm.h on a CUDA device. All pointers are to device memory. The
// functions are asynchronous: they put the work on `stream` (a cudaStream_t) of the
// current device. Each run gives the same bits.

#ifndef KERAS_MP_BATCH_NORM_CUDA_H_
#define KERAS_MP_BATCH_NORM_CUDA_H_

#include <cstddef>

#include "keras_mp/batch_norm.h"
#include "keras_mp/status.h"

namespace keras_mp {

// Bytes of scratch memory on the device, aligned to 8, that each function needs.
std::size_t BatchNormWorkspaceBytes(const BatchNorm& norm);
std::size_t BatchNormGradientWorkspaceBytes(const BatchNormGradient& gradient);

Status BatchNormCuda(const BatchNorm& norm, void* workspace, void* stream);
Status BatchNormGradientCuda(const BatchNormGradient& gradient, void* workspace,
                             void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_BATCH_NORM_CUDA_H_
