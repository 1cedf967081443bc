// The kernels of sm_80 and up for FP16.

#include "cuda/gemm/mma_launch.cuh"

namespace keras_mp::cuda {

cudaError_t LaunchMmaHalf(const Launch& launch) { return LaunchMma<Half>(launch); }

}  // namespace keras_mp::cuda
