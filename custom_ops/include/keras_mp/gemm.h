// Products of 16-bit matrices that accumulate in FP32: the third technique of
// "Mixed Precision Training" (Micikevicius et al., 2018, section 3.3). On a CPU also those
// of FP32 matrices.
//
//   C = round(activation(alpha * op(A) * op(B) + bias))
//
// Matrices are row-major. op(A) is [m, k] and op(B) is [k, n]; with transpose_a, A is
// stored as [k, m], with transpose_b, B as [n, k].
//
// Accumulator: FP32. Every product of two 16-bit elements is exact in FP32 (bfloat16:
// unless it underflows), so that an element of A * B errs by at most
// k * 2^-24 * sum |a| |b|, whatever the order of the sum, where every sum is rounded to
// nearest; on tensor cores, which cut off instead, by at most 3 k * 2^-24 * sum |a| |b|:
// src/cuda/gemm/primitives.cuh derives it. The bound is the same for FP32 elements, whose
// products are rounded, too, but for 2^-150 for each product below 2^-126 ("Improved error
// bounds for inner products in floating-point arithmetic", Jeannerod and Rump, 2013). On
// avx512_bf16, amx_bf16 and amx_fp16, the dot-product instructions of bfloat16 flush
// elements and sums below 2^-126 to 0, and so err by up to another
// 2^-126 * sum (1 + |a| + |b|). On amx_bf16 an FP16 element is the exact sum of two numbers
// of bfloat16, whose four products are summed: k counts as 8 there, at least.
// Rounding: once, when C is written, to nearest even. What overflows becomes inf.
// k = 0 gives activation(bias), whatever alpha is. NaN and inf propagate as in IEEE 754.

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

  DataType input = DataType::kHalf;   // of A and B: 16 bits, or kFloat on a CPU
  bool rounds_b = false;  // B is FP32, and rounded to the type of A when it is read
  DataType output = DataType::kHalf;  // of C: as the input, or kFloat
  DataType bias_type = DataType::kHalf;  // as the input, or kFloat
  Activation activation = Activation::kNone;

  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;    // [n]; none where null
  const float* alpha = nullptr;  // a scalar in the memory of the device; 1 where null

  // Where `upstream` is not null, the product is part of a gradient, on a CPU alone:
  //
  //   g[i, j] = upstream[i, j] * activation'(alpha * op(A) * op(B) + bias)[i, j]
  //   C = round(g),  column_sums[j] += sum over i of g[i, j]
  //
  // for the activation kGelu, whose derivative errs by up to 2^-20, and a C of the type of
  // the inputs, which `upstream` must not overlap. A sum is over all products of the
  // batch. FP32 numbers, not those rounded to C, are summed in FP32, the sums of 64 rows
  // each in double.
  const void* upstream = nullptr;            // [m, n], with the strides of C
  DataType upstream_type = DataType::kHalf;  // as the input, or kFloat
  float* column_sums = nullptr;              // [n]

  // Row strides, in elements.
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;

  // A batch of products, and the strides between their matrices, in elements. A stride of
  // 0 uses the same matrix for all. Bias and alpha are shared.
  std::int64_t batch = 1;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_c = 0;
};

// Checks sizes, types and pointers; kInvalidArgument says what is wrong.
Status Validate(const Gemm& gemm);

// Turns a batch whose products share B into one product with more rows, where the
// matrices of A and of C are contiguous; returns other products unchanged.
Gemm FoldBatch(const Gemm& gemm);

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_H_
