// Average pooling of 16-bit tensors in FP32, and its gradient, on a CPU: "Mixed Precision
// Training" (Micikevicius et al., 2018, section 3.3).
//
//   y = round(mean of the elements of x in a window)
//
// Padding is no part of the mean. Accumulator: FP32; the mean of N elements errs by at
// most N * 2^-24 of the mean of their absolute values. Rounding: once, to nearest even.

#ifndef KERAS_MP_AVERAGE_POOL_CPU_H_
#define KERAS_MP_AVERAGE_POOL_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

// One of the three pooled dimensions. Unused ones have size 1 and window 1.
struct PooledDimension {
  std::int64_t size = 1;    // of x
  std::int64_t pooled = 1;  // of y
  std::int64_t window = 1;
  std::int64_t stride = 1;
  std::int64_t before = 0;  // padding before the first element
};

// x is [batch, size, size, size, channels] and y [batch, pooled, pooled, pooled,
// channels], packed, in host memory. The gradient reads grad_y and writes grad_x.
struct AveragePool {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  PooledDimension dimensions[3];
  DataType type = DataType::kHalf;  // of x and y: kHalf or kBfloat16
  const void* from = nullptr;       // x, or for the gradient grad_y
  void* to = nullptr;               // y, or for the gradient grad_x
};

// The results depend on `isa` to the last bit, and never on the number of threads.
Status AveragePoolCpu(const AveragePool& pool, const Parallel& parallel = {},
                      Isa isa = ChosenIsa());
Status AveragePoolGradientCpu(const AveragePool& pool, const Parallel& parallel = {},
                              Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_AVERAGE_POOL_CPU_H_
