// Products of 16-bit matrices that accumulate in FP32: the third technique of
// "Mixed Precision Training" (Micikevicius et al., 2018, section 3.3).
//
//   C = round(activation(alpha * op(A) * op(B) + bias))
//
// Matrices are row-major. op(A) is [m, k] and op(B) is [k, n]; with transpose_a, A is
// stored as [k, m], with transpose_b, B as [n, k].
//
// Accumulator: FP32. Every product of two 16-bit numbers is exact in FP32 (bfloat16:
// unless it underflows), so that an element of A * B errs by at most
// k * 2^-24 * sum |a| |b|, whatever the order of the sum. Bfloat16 on avx512_bf16: pairs
// of products are added up by dot-product instructions, which take numbers and sums below
// 2^-126 for 0, and so err by up to another 2^-126 * sum (1 + |a| + |b|).
// Rounding: once, when C is written, to nearest even. What overflows becomes inf.
// k = 0 gives activation(bias), whatever alpha is. NaN and inf go through as IEEE 754 says.

#ifndef KERAS_MP_GEMM_H_
#define KERAS_MP_GEMM_H_

#include <cstdint>

#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

enum class Activation { kNone, kRelu, kTanh, kSigmoid, kGelu };

struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;

  DataType input = DataType::kHalf;   // of A and B: kHalf or kBfloat16
  bool rounds_b = false;  // B is FP32, and is rounded to the type of A as it is read
  DataType output = DataType::kHalf;  // of C: as the input, or kFloat
  DataType bias_type = DataType::kHalf;  // as the input, or kFloat
  Activation activation = Activation::kNone;

  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;    // [n]; none where null
  const float* alpha = nullptr;  // one number, in the kernel's memory; 1 where null

  // From one row to the next, in elements.
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;

  // How many products, and the elements from one to the next; a stride of 0 uses the
  // same matrix for all. Bias and alpha serve every product.
  std::int64_t batch = 1;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_c = 0;
};

// Says what is wrong with the sizes, types and pointers; kOk where nothing is.
Status Validate(const Gemm& gemm);

// A batch whose products share B is one product with more rows, where A and C leave no
// gaps between the matrices.
Gemm FoldBatch(const Gemm& gemm);

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_H_
