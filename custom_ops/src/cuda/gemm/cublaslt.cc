// alpha * op(A) * op(B) + bias by cuBLASLt: matrices as in keras_mp/gemm.h, row-major.
//
// Build and test, with a cuBLASLt that does nothing and without a GPU:
//   cmake -S custom_ops -B build/cuda -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=ON &&
//   cmake --build build/cuda --target fake_cublaslt gemm_cublaslt_test &&
//   ctest --test-dir build/cuda -R gemm_cublaslt_test

#include "cuda/gemm/cublaslt.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/gemm/cublaslt_descriptors.h"
#include "cuda/gemm/cublaslt_heuristics.h"
#include "cuda/gemm/cublaslt_library.h"

namespace keras_mp::cuda {
namespace {

// All that a call needs but the choice of an algorithm.
struct Prepared {
  cublaslt::Descriptors descriptors;
  cublasLtHandle_t handle = nullptr;
  std::vector<cublaslt::Algorithm> algorithms;
};

Status Prepare(const Gemm& gemm, std::size_t workspace_limit, Prepared* prepared) {
  const char* why = nullptr;
  if (!CublasLtIsAvailable(&why)) return {StatusCode::kUnimplemented, why};
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (std::max({gemm.m, gemm.n, gemm.k, gemm.batch}) > kMax) {
    return {StatusCode::kUnimplemented, "cuBLASLt takes sizes below 2^31"};
  }
  if (gemm.activation != Activation::kNone ||
      (gemm.bias != nullptr && gemm.bias_type != gemm.output)) {
    return {StatusCode::kUnimplemented, "cuBLASLt cannot fuse this bias or activation"};
  }
  if (!cublaslt::Describe(gemm, &prepared->descriptors)) return cublaslt::kNotPrepared;
  return cublaslt::FindAlgorithms(gemm, prepared->descriptors, workspace_limit,
                                  &prepared->handle, &prepared->algorithms);
}

// Prepares a call, and chooses the algorithm of the given rank.
Status Prepare(const Gemm& gemm, std::size_t workspace_limit, int rank,
               Prepared* prepared, cublaslt::Algorithm* algorithm) {
  const Status status = Prepare(gemm, workspace_limit, prepared);
  if (!status.ok()) return status;
  if (rank < 0 || static_cast<std::size_t>(rank) >= prepared->algorithms.size()) {
    return {StatusCode::kUnimplemented, "cuBLASLt has no algorithm for this product"};
  }
  *algorithm = prepared->algorithms[static_cast<std::size_t>(rank)];
  return {};
}

}  // namespace

bool CublasLtIsAvailable(const char** why) { return cublaslt::Find(why) != nullptr; }

Status CublasLtAlgorithmCount(const Gemm& gemm, std::size_t workspace_limit, int* count) {
  Prepared prepared;
  const Status status = Prepare(gemm, workspace_limit, &prepared);
  *count = static_cast<int>(prepared.algorithms.size());
  return status;
}

Status CublasLtWorkspaceBytes(const Gemm& gemm, std::size_t workspace_limit, int rank,
                              std::size_t* bytes) {
  Prepared prepared;
  cublaslt::Algorithm algorithm = {};
  const Status status = Prepare(gemm, workspace_limit, rank, &prepared, &algorithm);
  *bytes = algorithm.workspaceSize;
  return status;
}

Status CublasLtProduct(const Gemm& gemm, std::size_t workspace_limit, int rank,
                       const float* zero, void* workspace, std::size_t workspace_bytes,
                       cudaStream_t stream) {
  Prepared prepared;
  cublaslt::Algorithm algorithm = {};
  Status status = Prepare(gemm, workspace_limit, rank, &prepared, &algorithm);
  if (status.ok() && algorithm.workspaceSize > workspace_bytes) {
    status = Prepare(gemm, workspace_bytes, rank, &prepared, &algorithm);
  }
  if (!status.ok()) return status;

  const float host_one = 1.0f;
  const float host_zero = 0.0f;
  const bool on_device = gemm.alpha != nullptr;
  const cublaslt::Descriptors& d = prepared.descriptors;
  const cublasStatus_t result = cublaslt::Loaded().cublasLtMatmul(
      prepared.handle, d.product.get(), on_device ? gemm.alpha : &host_one, gemm.b,
      d.b.get(), gemm.a, d.a.get(), on_device ? zero : &host_zero, gemm.c, d.c.get(),
      gemm.c, d.c.get(), &algorithm.algo, workspace, workspace_bytes, stream);
  switch (result) {
    case CUBLAS_STATUS_SUCCESS:
      return {};
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return {StatusCode::kUnimplemented, "cuBLASLt refused this product"};
    default:
      return {StatusCode::kInternal, "cuBLASLt failed"};
  }
}

}  // namespace keras_mp::cuda
