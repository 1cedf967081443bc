// The product of gemm.h on a CUDA device. All pointers, alpha's too, are in device
// memory. Nothing waits: the work is put on the stream.

#ifndef KERAS_MP_GEMM_CUDA_H_
#define KERAS_MP_GEMM_CUDA_H_

#include <cstddef>

#include "keras_mp/gemm.h"

namespace keras_mp {

enum class CudaRoute {
  kOwn,       // the project's tensor-core kernel
  kCublasLt,  // NVIDIA's library, found at run time
};

const char* Name(CudaRoute route);

// Whether the route can run on the current device; if not, `why` (where not null) gets
// a text that says why.
bool IsAvailable(CudaRoute route, const char** why = nullptr);

// Bytes of scratch memory on the device that GemmCuda can use for this product.
std::size_t WorkspaceBytes(const Gemm& gemm, CudaRoute route);

// Puts `gemm` on `stream` (a cudaStream_t) of the current device. `workspace` has
// WorkspaceBytes(gemm, route) bytes, aligned to 256; the own route also runs with less,
// or none. kUnimplemented: nothing was put on the stream, another route may do it
// (cuBLASLt may know no algorithm; own has no bfloat16 before compute capability 8.0).
Status GemmCuda(const Gemm& gemm, CudaRoute route, void* workspace,
                std::size_t workspace_bytes, void* stream);

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_CUDA_H_
