// A product as cuBLASLt describes it.
//
// cuBLASLt works on column-major matrices. A row-major matrix is the transpose of the
// column-major matrix in the same memory, so the library is asked for C^T = op(B)^T
// op(A)^T: its first operand is B, its second A, and its bias along the rows of C^T is
// the bias along the columns of C.

#ifndef KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_DESCRIPTORS_H_
#define KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_DESCRIPTORS_H_

#include <cublasLt.h>

#include <memory>

#include "keras_mp/gemm.h"

namespace keras_mp::cuda::cublaslt {

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* descriptor) const;
  void operator()(cublasLtMatrixLayoutOpaque_t* layout) const;
  void operator()(cublasLtMatmulPreferenceOpaque_t* preference) const;
};
template <class Opaque>
using Owned = std::unique_ptr<Opaque, Destroy>;

struct Descriptors {
  Owned<cublasLtMatmulDescOpaque_t> product;
  Owned<cublasLtMatrixLayoutOpaque_t> a, b, c;  // of A, B and C of gemm.h
};

// Describes a product with alpha and bias, without its activation. Returns whether
// cuBLASLt, which Find() has found, took the description.
bool Describe(const Gemm& gemm, Descriptors* descriptors);

}  // namespace keras_mp::cuda::cublaslt

#endif  // KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_DESCRIPTORS_H_
