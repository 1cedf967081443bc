// The algorithms that cuBLASLt's heuristic proposes for a product, cached by product.

#ifndef KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_HEURISTICS_H_
#define KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_HEURISTICS_H_

#include <cublasLt.h>

#include <cstddef>
#include <vector>

#include "cuda/gemm/cublaslt_descriptors.h"
#include "keras_mp/gemm.h"
#include "keras_mp/status.h"

namespace keras_mp::cuda::cublaslt {

// An algorithm with the bytes of workspace that it needs.
using Algorithm = cublasLtMatmulHeuristicResult_t;

// The status of a product that cuBLASLt could not prepare. Nothing is on the stream yet,
// so another route may compute it.
inline constexpr Status kNotPrepared = {StatusCode::kUnimplemented,
                                        "cuBLASLt failed to prepare this product"};

// Finds the algorithms, at most 8 and the best one first, that need at most
// `workspace_limit` bytes, and the handle of the current device, with which they run.
// All of them add the parts of a sum in FP32.
Status FindAlgorithms(const Gemm& gemm, const Descriptors& descriptors,
                      std::size_t workspace_limit, cublasLtHandle_t* handle,
                      std::vector<Algorithm>* algorithms);

}  // namespace keras_mp::cuda::cublaslt

#endif  // KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_HEURISTICS_H_
