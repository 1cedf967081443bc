// cuda/gemm/cublaslt.h where cublasLt.h was not found at build time.

#include "cuda/gemm/cublaslt.h"

namespace keras_mp::cuda {
namespace {

constexpr char kWhy[] = "built without cuBLASLt: cublasLt.h was not found at build time";
constexpr Status kAbsent = {StatusCode::kUnimplemented, kWhy};

}  // namespace

bool CublasLtIsAvailable(const char** why) {
  *why = kWhy;
  return false;
}

Status CublasLtAlgorithmCount(const Gemm&, std::size_t, int* count) {
  *count = 0;
  return kAbsent;
}

Status CublasLtWorkspaceBytes(const Gemm&, std::size_t, int, std::size_t* bytes) {
  *bytes = 0;
  return kAbsent;
}

Status CublasLtProduct(const Gemm&, std::size_t, int, const float*, void*, std::size_t,
                       cudaStream_t) {
  return kAbsent;
}

}  // namespace keras_mp::cuda
