#include "cuda/gemm/cublaslt_descriptors.h"

#include <cstdint>

#include "cuda/gemm/cublaslt_library.h"

namespace keras_mp::cuda::cublaslt {
namespace {

cudaDataType_t TypeOf(DataType type) {
  switch (type) {
    case DataType::kHalf:
      return CUDA_R_16F;
    case DataType::kBfloat16:
      return CUDA_R_16BF;
    case DataType::kFloat:
      break;
  }
  return CUDA_R_32F;
}

using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

// Describes a row-major matrix [rows, columns] as its column-major transpose. Returns
// null on failure.
Layout MakeLayout(DataType type, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                  std::int64_t batch, std::int64_t stride) {
  const Library& lt = Loaded();
  cublasLtMatrixLayout_t raw = nullptr;
  if (lt.cublasLtMatrixLayoutCreate(&raw, TypeOf(type), static_cast<std::uint64_t>(columns),
                                    static_cast<std::uint64_t>(rows), ld) !=
      CUBLAS_STATUS_SUCCESS) {
    return nullptr;
  }
  Layout layout(raw);
  const std::int32_t count = static_cast<std::int32_t>(batch);
  if (lt.cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof count) != CUBLAS_STATUS_SUCCESS ||
      lt.cublasLtMatrixLayoutSetAttribute(
          raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) !=
          CUBLAS_STATUS_SUCCESS) {
    return nullptr;
  }
  return layout;
}

}  // namespace

void Destroy::operator()(cublasLtMatmulDescOpaque_t* descriptor) const {
  Loaded().cublasLtMatmulDescDestroy(descriptor);
}

void Destroy::operator()(cublasLtMatrixLayoutOpaque_t* layout) const {
  Loaded().cublasLtMatrixLayoutDestroy(layout);
}

void Destroy::operator()(cublasLtMatmulPreferenceOpaque_t* preference) const {
  Loaded().cublasLtMatmulPreferenceDestroy(preference);
}

bool Describe(const Gemm& g, Descriptors* descriptors) {
  const Library& lt = Loaded();
  cublasLtMatmulDesc_t raw = nullptr;
  if (lt.cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
      CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  descriptors->product.reset(raw);
  bool ok = true;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    ok = ok && lt.cublasLtMatmulDescSetAttribute(raw, attribute, &value, sizeof value) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  const auto operation = [](bool transpose) -> std::int32_t {
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(g.transpose_b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(g.transpose_a));
  const std::int32_t mode =
      g.alpha == nullptr ? CUBLASLT_POINTER_MODE_HOST : CUBLASLT_POINTER_MODE_DEVICE;
  set(CUBLASLT_MATMUL_DESC_POINTER_MODE, mode);
  if (g.bias != nullptr) {
    const std::uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
  }
  descriptors->a = MakeLayout(g.input, g.transpose_a ? g.k : g.m,
                              g.transpose_a ? g.m : g.k, g.lda, g.batch, g.stride_a);
  descriptors->b = MakeLayout(g.input, g.transpose_b ? g.n : g.k,
                              g.transpose_b ? g.k : g.n, g.ldb, g.batch, g.stride_b);
  descriptors->c = MakeLayout(g.output, g.m, g.n, g.ldc, g.batch, g.stride_c);
  return ok && descriptors->a != nullptr && descriptors->b != nullptr &&
         descriptors->c != nullptr;
}

}  // namespace keras_mp::cuda::cublaslt
