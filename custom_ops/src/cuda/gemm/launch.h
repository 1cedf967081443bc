// Launches the kernels of the product. Each source file that compiles kernels has one
// function here, so that the files compile in parallel.

#ifndef KERAS_MP_SRC_CUDA_GEMM_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_GEMM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cuda/gemm/plan.h"

namespace keras_mp::cuda {

struct Launch {
  Problem problem;
  std::int64_t batch;
  TileKind tile;
  bool contiguous_k_a;  // whether k is contiguous in the memory of A
  bool contiguous_k_b;  // likewise B
  cudaStream_t stream;
};

cudaError_t LaunchMmaHalf(const Launch& launch);
cudaError_t LaunchMmaBfloat16(const Launch& launch);
cudaError_t LaunchWmma(const Launch& launch);

using Kernel = void (*)(Problem);

// Launches `kernel` for all products of the batch, 65535 at a time. Does not query or
// clear errors of earlier work.
inline cudaError_t LaunchAll(const Launch& launch, Kernel kernel, dim3 grid, dim3 block,
                             int shared_bytes) {
  const void* function = reinterpret_cast<const void*>(kernel);
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 0) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared_bytes);
  }
  for (std::int64_t first = 0; first < launch.batch && error == cudaSuccess;
       first += kMaxGridBatch) {
    Problem problem = SkipProducts(launch.problem, first);
    grid.z = static_cast<unsigned>(std::min(kMaxGridBatch, launch.batch - first));
    void* arguments[] = {&problem};
    error = cudaLaunchKernel(function, grid, block, arguments,
                             static_cast<std::size_t>(shared_bytes), launch.stream);
  }
  return error;
}

// Launches a kernel that computes one tile of `Shape` in each block.
template <class Shape>
cudaError_t LaunchTiles(const Launch& launch, Kernel kernel, int shared_bytes) {
  const Problem& p = launch.problem;
  const int tiles = CeilDiv(p.m, Shape::kM) * CeilDiv(p.n, Shape::kN);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.splits));
  return LaunchAll(launch, kernel, grid, dim3(Shape::kThreads), shared_bytes);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_LAUNCH_H_
