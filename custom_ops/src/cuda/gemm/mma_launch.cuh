// Compiles MmaKernel for one element type: every shape and transpose.

#ifndef KERAS_MP_SRC_CUDA_GEMM_MMA_LAUNCH_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_MMA_LAUNCH_CUH_

#include "cuda/gemm/launch.h"
#include "cuda/gemm/mma.cuh"
#include "cuda/gemm/shapes.h"

namespace keras_mp::cuda {

template <class T, class Shape>
cudaError_t LaunchMmaShape(const Launch& launch) {
  const Kernel kernels[2][2] = {
      {MmaKernel<T, Shape, false, false>, MmaKernel<T, Shape, false, true>},
      {MmaKernel<T, Shape, true, false>, MmaKernel<T, Shape, true, true>},
  };
  return LaunchTiles<Shape>(launch,
                            kernels[launch.contiguous_k_a][launch.contiguous_k_b],
                            MmaMemory<Shape>::kBytes);
}

template <class T>
cudaError_t LaunchMma(const Launch& launch) {
  switch (launch.tile) {
    case TileKind::kLarge:
      return LaunchMmaShape<T, MmaLarge>(launch);
    case TileKind::kMedium:
      return LaunchMmaShape<T, MmaMedium>(launch);
    case TileKind::kSmall:
      return LaunchMmaShape<T, MmaSmall>(launch);
    case TileKind::kNarrow:
      return LaunchMmaShape<T, MmaNarrow>(launch);
    case TileKind::kFlat:
      return LaunchMmaShape<T, MmaFlat>(launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_MMA_LAUNCH_CUH_
