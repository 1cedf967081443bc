// The functions of row_norm.h on a CUDA device. All pointers are to device memory. The
// functions are asynchronous: they put the work on `stream` (a cudaStream_t) of the
// current device. Each run gives the same bits.

#ifndef KERAS_MP_ROW_NORM_CUDA_H_
#define KERAS_MP_ROW_NORM_CUDA_H_

#include <cstddef>

#include "keras_mp/row_norm.h"
#include "keras_mp/status.h"

namespace keras_mp {

Status RowNormCuda(const RowNorm& norm, void* stream);

// Bytes of scratch memory on the device, aligned to 8, that the gradient needs: 0 where
// it computes no gradient of gamma and beta.
std::size_t RowNormGradientWorkspaceBytes(const RowNormGradient& gradient);

Status RowNormGradientCuda(const RowNormGradient& gradient, void* workspace,
                           void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_ROW_NORM_CUDA_H_
