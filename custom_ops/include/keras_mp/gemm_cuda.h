// The product of gemm.h on a CUDA device. All pointers, also alpha, are to device memory.
// GemmCuda is asynchronous: it puts the work on a stream.

#ifndef KERAS_MP_GEMM_CUDA_H_
#define KERAS_MP_GEMM_CUDA_H_

#include <cstddef>

#include "keras_mp/gemm.h"

namespace keras_mp {

enum class CudaRoute {
  kOwn,       // the tensor-core kernels of src/cuda/gemm
  kCublasLt,  // NVIDIA's library, loaded at run time
};

const char* Name(CudaRoute route);

// Returns whether the route can run on the current device. If not, `why` gets the reason
// unless it is null.
bool IsAvailable(CudaRoute route, const char** why = nullptr);

// Bytes of scratch memory on the device that GemmCuda can use for this product.
std::size_t WorkspaceBytes(const Gemm& gemm, CudaRoute route);

// Puts `gemm` on `stream` (a cudaStream_t) of the current device. `workspace` has
// WorkspaceBytes(gemm, route) bytes, aligned to 256; kOwn also runs with less, or none,
// unless B is FP32, of which the workspace holds a copy in 16 bits.
// Returns kUnimplemented where nothing was put on the stream and another route may
// compute the product: cuBLASLt may have no algorithm for it, and kOwn has no bfloat16
// before compute capability 8.0.
Status GemmCuda(const Gemm& gemm, CudaRoute route, void* workspace,
                std::size_t workspace_bytes, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_CUDA_H_
