// The function of sum.h on a CUDA device. All pointers are to device memory. SumCuda is
// asynchronous: it puts the work on `stream` (a cudaStream_t) of the current device. Each
// run gives the same bits.

#ifndef KERAS_MP_SUM_CUDA_H_
#define KERAS_MP_SUM_CUDA_H_

#include <cstddef>

#include "keras_mp/status.h"
#include "keras_mp/sum.h"

namespace keras_mp {

// Bytes of scratch memory on the device, aligned to 8, that SumCuda needs.
std::size_t SumWorkspaceBytes(const Sum& sum);

Status SumCuda(const Sum& sum, void* workspace, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_SUM_CUDA_H_
