// Normalization of each row of a 16-bit matrix, in FP32, and its gradient: "Mixed
// Precision Training" (Micikevicius et al., 2018, section 3.3). row_norm_cpu.h and
// row_norm_cuda.h declare the functions that compute it.
//
//   z = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)    layer normalization
//   z = x / sqrt(mean(x^2) + epsilon)                             root mean square
//   z = x / max(sqrt(sum(x^2)), epsilon)                          unit length
//   y = round(gamma * z + beta)
//
// Accumulator: FP32 for a part of a row, then double for the sums of the parts, so that
// the sums of a row err by at most 2^-17 of the sum of the absolute values; for the
// gradients of gamma and beta, FP32 for at most 256 rows, then double, and so 2^-15.
// Rounding: once, to nearest even. A NaN makes its row NaN, and so does an inf in layer
// normalization; in the others the inf becomes NaN and the finite elements of its row 0.
// In unit length the gradient of a row of zeros is 0.

#ifndef KERAS_MP_ROW_NORM_H_
#define KERAS_MP_ROW_NORM_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

enum class RowNormKind { kLayer, kRootMeanSquare, kUnitLength };

// Matrices are [rows, size], packed; gamma and beta [size].
struct RowNorm {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  DataType type = DataType::kHalf;  // of all matrices: kHalf or kBfloat16
  RowNormKind kind = RowNormKind::kLayer;
  float epsilon = 0;
  const void* x = nullptr;
  const float* gamma = nullptr;  // 1 where null
  const float* beta = nullptr;   // 0 where null
  void* y = nullptr;
};

struct RowNormGradient {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  DataType type = DataType::kHalf;
  RowNormKind kind = RowNormKind::kLayer;
  float epsilon = 0;
  const void* x = nullptr;
  const void* grad_y = nullptr;
  const float* gamma = nullptr;  // 1 where null
  void* grad_x = nullptr;
  float* grad_gamma = nullptr;  // not computed where null
  float* grad_beta = nullptr;   // not computed where null
};

}  // namespace keras_mp

#endif  // KERAS_MP_ROW_NORM_H_
