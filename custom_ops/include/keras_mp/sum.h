// The sum of a 16-bit tensor along one dimension, in FP32: "Mixed Precision Training"
// (Micikevicius et al., 2018, section 3.3). sum_cpu.h and sum_cuda.h declare the functions
// that compute it.
//
//   y[o, i] = sum over c of x[o, c, i]
//
// Accumulator: FP32 for at most 256 elements, then double for their sums. So a sum errs
// by at most 2^-15 of the sum of the absolute values, whatever the count; the result is
// FP32.

#ifndef KERAS_MP_SUM_H_
#define KERAS_MP_SUM_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

struct Sum {
  std::int64_t outer = 0;
  std::int64_t count = 0;
  std::int64_t inner = 0;
  DataType type = DataType::kHalf;  // of x: kHalf or kBfloat16
  const void* x = nullptr;          // [outer, count, inner], packed
  float* y = nullptr;               // [outer, inner]
};

}  // namespace keras_mp

#endif  // KERAS_MP_SUM_H_
