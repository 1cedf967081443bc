// Products by NVIDIA's cuBLASLt, which is loaded at run time: nothing links to it.

#ifndef KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_
#define KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "keras_mp/gemm.h"

namespace keras_mp::cuda {

// Returns whether the library was found. If not, `why` gets the reason, and the next call
// looks for it again.
bool CublasLtIsAvailable(const char** why);

// Counts the algorithms that the library's heuristic proposes with at most
// `workspace_limit` bytes of workspace, 8 at most. Their ranks are 0, the library's first
// choice, to count - 1. The proposals are cached for each product. A product without an
// algorithm is kUnimplemented, and so is every failure before the product is on the
// stream.
Status CublasLtAlgorithmCount(const Gemm& gemm, std::size_t workspace_limit, int* count);

// Bytes of workspace that the algorithm of the given rank needs.
Status CublasLtWorkspaceBytes(const Gemm& gemm, std::size_t workspace_limit, int rank,
                              std::size_t* bytes);

// Puts alpha * op(A) * op(B) + bias on the stream. The activation must be kNone and the
// bias of the type of the output: then cuBLASLt computes exactly what gemm.h defines. The
// input may also be kFloat (FP32, not TF32), which the benchmark compares with.
// `zero` is an FP32 0 in device memory. `workspace` is aligned to 256 bytes.
Status CublasLtProduct(const Gemm& gemm, std::size_t workspace_limit, int rank,
                       const float* zero, void* workspace, std::size_t workspace_bytes,
                       cudaStream_t stream);

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_
