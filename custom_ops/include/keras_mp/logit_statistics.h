// What a cross entropy needs of the logits of a linear layer, without all of them in
// memory, and the gradients. "Mixed Precision Training" (Micikevicius et al., 2018,
// section 3.3) is about the accumulators, "Cut Your Losses in Large-Vocabulary Language
// Models" (Wijmans et al., 2024) about the blocks.
//
//   z[r, v] = cap(sum over h of inputs[r, h] * kernel[h, v] + bias[v])
//   logsumexp[r] = log(sum over v of exp(z[r, v]))
//   target[r] = sum over v of targets[r, v] * z[r, v], the logit of the label
//   total[r] = sum over v of z[r, v]
//   argmax[r] = the first v with the largest z[r, v]
//
// with cap(x) = soft_cap * tanh(x / soft_cap), or x without a cap; and, where d_f[r] is the
// gradient of a result f,
//
//   g[r, v] = cap'(z[r, v]) * (d_logsumexp[r] * exp(z[r, v] - logsumexp[r])
//                              + d_target[r] * targets[r, v] + d_total[r])
//   grad_inputs[r, h] = round(sum over v of g[r, v] * kernel[h, v])
//   grad_kernel[h, v] = round(sum over r of inputs[r, h] * g[r, v])
//   grad_bias[v] = sum over r of g[r, v]
//
// A block of words is computed at a time, and again for the gradient.
//
// Accumulator: FP32, everywhere. A kernel in FP32 is rounded to the type of the inputs
// when it is read. z errs as a product of gemm.h, exp by 2^-20 of itself, and a sum over
// the words by words * 2^-24 of the sum of the sizes. g is rounded to the type of the
// inputs as an operand of the two products; in FP16 it is first multiplied by a power of
// two, up to 2^100, that brings the largest |d_logsumexp| + |d_target| + |d_total| of all
// rows to 2^14 or more, below 2^15.
// Rounding: once, to nearest even.
// A target of 0 times a logit of -inf is 0. NaN and inf go into their rows' logsumexp.

#ifndef KERAS_MP_LOGIT_STATISTICS_H_
#define KERAS_MP_LOGIT_STATISTICS_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// inputs is [rows, size] and kernel [size, words], or with `transpose` [words, size], all
// packed.
struct LinearLogits {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  std::int64_t words = 0;
  DataType type = DataType::kHalf;         // of the inputs
  DataType kernel_type = DataType::kHalf;  // the same, or kFloat
  bool transpose = false;
  float soft_cap = 0;  // none where 0

  const void* inputs = nullptr;
  const void* kernel = nullptr;
  const float* bias = nullptr;  // [words]; none where null
  // One of both: the label of each row, of which one that is no word has no target; or
  // [rows, words].
  const std::int32_t* labels = nullptr;
  const float* targets = nullptr;
};

// Each is [rows].
struct LogitStatistics {
  float* logsumexp = nullptr;
  float* target = nullptr;
  float* total = nullptr;
  std::int32_t* argmax = nullptr;
};

struct LogitStatisticsGradient {
  const float* logsumexp = nullptr;
  const float* grad_logsumexp = nullptr;  // those of the results
  const float* grad_target = nullptr;
  const float* grad_total = nullptr;
  void* grad_inputs = nullptr;
  void* grad_kernel = nullptr;  // of the type of the kernel
  float* grad_bias = nullptr;   // not computed where null
};

}  // namespace keras_mp

#endif  // KERAS_MP_LOGIT_STATISTICS_H_
