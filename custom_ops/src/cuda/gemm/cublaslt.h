// Products by cuBLASLt, which is looked for at run time: nothing links to it.

#ifndef KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_
#define KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "keras_mp/gemm.h"

namespace keras_mp::cuda {

// Whether the library was found; if not, `why` gets a text that says why, and the next call
// looks again.
bool CublasLtIsAvailable(const char** why);

// How many algorithms the library proposes, at most 8; a `rank` below that names one, 0
// the library's own choice. They are cached for each problem. None is kUnimplemented, and
// so is whatever fails before the product is put on the stream.
Status CublasLtChoices(const Gemm& gemm, std::size_t workspace_limit, int* count);

// Bytes of workspace that an algorithm needs.
Status CublasLtWorkspace(const Gemm& gemm, std::size_t workspace_limit, int rank,
                         std::size_t* bytes);

// Puts alpha * op(A) * op(B) + bias on the stream. The activation must be kNone and the
// bias of the output's type: with these the library does exactly what gemm.h says. The
// input may be kFloat too (FP32 proper, not TF32), which benchmarks compare with.
// `zero` is an FP32 0 in device memory. `workspace` is aligned to 256 bytes.
Status CublasLtProduct(const Gemm& gemm, std::size_t workspace_limit, int rank,
                       const float* zero, void* workspace, std::size_t workspace_bytes,
                       cudaStream_t stream);

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_H_
