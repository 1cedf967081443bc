// Average pooling of 16-bit numbers in FP32, and its gradient, on a CPU: "Mixed Precision
// Training" (Micikevicius et al., 2018, section 3.3).
//
//   y = round(mean of the numbers of x in a window)
//
// What lies outside of x does not count. Accumulator: FP32; the mean of N numbers errs by
// at most N * 2^-24 of the mean of their absolute values. Rounding: once, to nearest even.

#ifndef KERAS_MP_AVERAGE_POOL_CPU_H_
#define KERAS_MP_AVERAGE_POOL_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

// One of the three dimensions that are pooled; size 1 and window 1 where there are fewer.
struct PooledDimension {
  std::int64_t size = 1;    // of x
  std::int64_t pooled = 1;  // of y
  std::int64_t window = 1;
  std::int64_t stride = 1;
  std::int64_t before = 0;  // how far the first window begins outside of x
};

// x is [batch, ..., channels] and y [batch, ..., channels], packed, in host memory. The
// gradient reads `y`, that of the result, and writes `x`.
struct AveragePool {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  PooledDimension dimensions[3];
  DataType type = DataType::kHalf;  // of x and y: kHalf or kBfloat16
  const void* from = nullptr;       // x, or for the gradient that of y
  void* to = nullptr;               // y, or for the gradient that of x
};

// Their bits depend on `isa`, never on the threads.
Status AveragePoolCpu(const AveragePool& pool, const Parallel& parallel = {},
                      Isa isa = ChosenIsa());
Status AveragePoolGradientCpu(const AveragePool& pool, const Parallel& parallel = {},
                              Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_AVERAGE_POOL_CPU_H_
