#include "cuda/gemm/cublaslt_heuristics.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "common/alignment.h"
#include "cuda/gemm/cublaslt_library.h"

namespace keras_mp::cuda::cublaslt {
namespace {

constexpr int kMaxAlgorithms = 8;
constexpr std::size_t kMaxCached = 4096;  // products; then the cache is emptied

// cuBLASLt assumes 256 bytes where no alignment is given, and never needs more.
std::uint32_t KnownAlignment(const void* pointer) { return AlignmentOf(pointer, 256); }

Status AskHeuristic(cublasLtHandle_t handle, const Gemm& g, const Descriptors& d,
                    std::size_t workspace_limit, std::vector<Algorithm>* algorithms) {
  const Library& lt = Loaded();
  cublasLtMatmulPreference_t raw = nullptr;
  if (lt.cublasLtMatmulPreferenceCreate(&raw) != CUBLAS_STATUS_SUCCESS) {
    return kNotPrepared;
  }
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(raw);
  bool ok = true;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    ok = ok && lt.cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value,
                                                       sizeof value) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  const std::uint64_t workspace = workspace_limit;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // Split sums are reduced in FP32 or not at all: the other schemes round each part to
  // the type of C.
  const std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, KnownAlignment(g.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, KnownAlignment(g.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, KnownAlignment(g.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, KnownAlignment(g.c));
  if (!ok) return kNotPrepared;

  std::array<Algorithm, kMaxAlgorithms> found = {};
  int count = 0;
  const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
      handle, d.product.get(), d.b.get(), d.a.get(), d.c.get(), d.c.get(),
      preference.get(), kMaxAlgorithms, found.data(), &count);
  algorithms->clear();
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  if (status != CUBLAS_STATUS_SUCCESS) return kNotPrepared;
  for (int i = 0; i < count; ++i) {
    const Algorithm& algorithm = found[static_cast<std::size_t>(i)];
    if (algorithm.state == CUBLAS_STATUS_SUCCESS &&
        algorithm.workspaceSize <= workspace_limit) {
      algorithms->push_back(algorithm);
    }
  }
  return {};
}

// Everything that the heuristic depends on.
using Key = std::array<std::int64_t, 22>;

Key KeyOf(int device, const Gemm& g, std::size_t workspace_limit) {
  return {device,
          g.m,
          g.n,
          g.k,
          g.transpose_a,
          g.transpose_b,
          static_cast<std::int64_t>(g.input),
          static_cast<std::int64_t>(g.output),
          g.lda,
          g.ldb,
          g.ldc,
          g.batch,
          g.stride_a,
          g.stride_b,
          g.stride_c,
          g.alpha != nullptr,
          g.bias != nullptr,
          g.bias == nullptr ? 0 : KnownAlignment(g.bias),
          KnownAlignment(g.a),
          KnownAlignment(g.b),
          KnownAlignment(g.c),
          static_cast<std::int64_t>(workspace_limit)};
}

// One handle for each device, and the algorithms of the products so far.
class Cache {
 public:
  Status Find(const Gemm& gemm, const Descriptors& descriptors, std::size_t limit,
              cublasLtHandle_t* handle, std::vector<Algorithm>* algorithms) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return kNotPrepared;
    const Key key = KeyOf(device, gemm, limit);
    const std::lock_guard<std::mutex> lock(mutex_);
    cublasLtHandle_t& of_device = handles_[device];
    if (of_device == nullptr &&
        Loaded().cublasLtCreate(&of_device) != CUBLAS_STATUS_SUCCESS) {
      of_device = nullptr;
      return kNotPrepared;
    }
    *handle = of_device;
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) {
      *algorithms = found->second;
      return {};
    }
    const Status status = AskHeuristic(of_device, gemm, descriptors, limit, algorithms);
    if (!status.ok()) return status;
    if (algorithms_.size() >= kMaxCached) algorithms_.clear();
    algorithms_.emplace(key, *algorithms);
    return {};
  }

 private:
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, std::vector<Algorithm>> algorithms_;
};

}  // namespace

Status FindAlgorithms(const Gemm& gemm, const Descriptors& descriptors,
                      std::size_t workspace_limit, cublasLtHandle_t* handle,
                      std::vector<Algorithm>* algorithms) {
  // Never destroyed: cuBLASLt and CUDA may be gone before the destructors of statics run.
  static Cache* const cache = new Cache;
  return cache->Find(gemm, descriptors, workspace_limit, handle, algorithms);
}

}  // namespace keras_mp::cuda::cublaslt
