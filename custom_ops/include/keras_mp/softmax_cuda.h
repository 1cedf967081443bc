// The functions of softmax.h on a CUDA device. All pointers are to device memory. The
// functions are asynchronous: they put the work on `stream` (a cudaStream_t) of the
// current device. Each run gives the same bits.

#ifndef KERAS_MP_SOFTMAX_CUDA_H_
#define KERAS_MP_SOFTMAX_CUDA_H_

#include "keras_mp/softmax.h"
#include "keras_mp/status.h"

namespace keras_mp {

Status SoftmaxCuda(const Softmax& softmax, void* stream);
Status SoftmaxGradientCuda(const SoftmaxGradient& gradient, void* stream);
Status FloatSoftmaxGradientCuda(const FloatSoftmaxGradient& gradient, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_SOFTMAX_CUDA_H_
