// The softmax of each row of a 16-bit matrix, in FP32, and its gradient: "Mixed
// Precision Training" (Micikevicius et al., 2018, section 3.3). softmax_cpu.h and
// softmax_cuda.h declare the functions that compute it.
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//   grad_x = round(p * (grad_y - sum(p * grad_y))), where p is y before rounding
//
// The gradient of an FP32 matrix x is computed from y instead, so that only y is kept:
//
//   grad_x = y * (grad_y - sum(y * grad_y))
//
// Accumulator: FP32 for a part of a row, then double for the sums of the parts. exp errs
// by 2^-22 of itself, and so y before rounding errs by at most 2^-19 of itself.
// Rounding: once, to nearest even. A NaN or +inf makes its row NaN, and so does a row of
// -inf alone, as IEEE 754 says of the formula; other -inf give 0.

#ifndef KERAS_MP_SOFTMAX_H_
#define KERAS_MP_SOFTMAX_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// Matrices are [rows, size], packed.
struct Softmax {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  DataType type = DataType::kHalf;  // of all matrices: kHalf or kBfloat16
  bool is_x_float = false;          // x is FP32 instead
  const void* x = nullptr;
  void* y = nullptr;
};

struct SoftmaxGradient {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  DataType type = DataType::kHalf;
  const void* x = nullptr;
  const void* grad_y = nullptr;
  void* grad_x = nullptr;
};

struct FloatSoftmaxGradient {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  DataType type = DataType::kHalf;  // of y and grad_y
  const void* y = nullptr;
  const void* grad_y = nullptr;
  float* grad_x = nullptr;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SOFTMAX_H_
