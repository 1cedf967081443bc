// The integer types of all CUDA kernels. Compiles with nvcc, with NVRTC (which has no
// host headers) and as plain C++.

#ifndef KERAS_MP_SRC_CUDA_COMMON_TYPES_H_
#define KERAS_MP_SRC_CUDA_COMMON_TYPES_H_

#include "common/host_device.h"

namespace keras_mp::cuda {

// 64 bits for offsets into an array.
using Index = long long;

// The bits of a 16-bit floating-point number.
using Bits16 = unsigned short;

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_COMMON_TYPES_H_
