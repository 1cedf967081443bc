// The kernels of sm_80 and up for bfloat16.

#include "cuda/gemm/mma_launch.cuh"

namespace keras_mp::cuda {

cudaError_t LaunchMmaBfloat16(const Launch& launch) {
  return LaunchMma<Bfloat16>(launch);
}

}  // namespace keras_mp::cuda
