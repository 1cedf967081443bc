// The functions of cuBLASLt, found at run time with dlopen.

#ifndef KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_LIBRARY_H_
#define KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_LIBRARY_H_

#include <cublasLt.h>

namespace keras_mp::cuda::cublaslt {

// Calls declare(name) for each function that is used.
#define KERAS_MP_CUBLASLT_FUNCTIONS(declare)     \
  declare(cublasLtGetVersion)                    \
  declare(cublasLtCreate)                        \
  declare(cublasLtMatmul)                        \
  declare(cublasLtMatmulAlgoGetHeuristic)        \
  declare(cublasLtMatmulDescCreate)              \
  declare(cublasLtMatmulDescDestroy)             \
  declare(cublasLtMatmulDescSetAttribute)        \
  declare(cublasLtMatmulPreferenceCreate)        \
  declare(cublasLtMatmulPreferenceDestroy)       \
  declare(cublasLtMatmulPreferenceSetAttribute)  \
  declare(cublasLtMatrixLayoutCreate)            \
  declare(cublasLtMatrixLayoutDestroy)           \
  declare(cublasLtMatrixLayoutSetAttribute)

// Pointers to the functions, under their own names.
struct Library {
#define KERAS_MP_DECLARE(name) decltype(&::name) name = nullptr;
  KERAS_MP_CUBLASLT_FUNCTIONS(KERAS_MP_DECLARE)
#undef KERAS_MP_DECLARE
};

// Returns the library, or null and the reason in `why`. Only success is remembered:
// TensorFlow may load its own cuBLASLt later, with the first GPU. The library stays
// loaded until the process ends, as a destructor could run after CUDA's own.
const Library* Find(const char** why);

// Returns the library that Find() found.
const Library& Loaded();

}  // namespace keras_mp::cuda::cublaslt

#endif  // KERAS_MP_SRC_CUDA_GEMM_CUBLASLT_LIBRARY_H_
