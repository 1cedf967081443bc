// The kernels of sm_70 and sm_75.

#include "cuda/gemm/wmma.cuh"

#include "cuda/gemm/launch.h"
#include "cuda/gemm/shapes.h"

namespace keras_mp::cuda {
namespace {

template <class Shape, bool kContiguousKA, bool kContiguousKB>
cudaError_t LaunchInstance(const Launch& launch) {
  return LaunchTiles<Shape>(launch, WmmaKernel<Shape, kContiguousKA, kContiguousKB>,
                            WmmaMemory<Shape, kContiguousKA, kContiguousKB>::kBytes);
}

template <class Shape>
cudaError_t LaunchShape(const Launch& launch) {
  if (launch.contiguous_k_a) {
    return launch.contiguous_k_b ? LaunchInstance<Shape, true, true>(launch)
                                 : LaunchInstance<Shape, true, false>(launch);
  }
  return launch.contiguous_k_b ? LaunchInstance<Shape, false, true>(launch)
                               : LaunchInstance<Shape, false, false>(launch);
}

}  // namespace

cudaError_t LaunchWmma(const Launch& launch) {
  return launch.tile == TileKind::kMedium ? LaunchShape<WmmaMedium>(launch)
                                          : LaunchShape<WmmaSmall>(launch);
}

}  // namespace keras_mp::cuda
