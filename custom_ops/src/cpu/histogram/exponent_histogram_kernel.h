// The histogram of the exponents of an array, which each instruction set has.

#ifndef KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_H_
#define KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

struct ExponentHistogramKernel {
  // Adds the numbers of x[first, first + size) to the counts of their bins, which are
  // those of keras_mp/exponent_histogram_cpu.h.
  void (*count)(DataType type, const void* x, std::int64_t first, std::int64_t size,
                std::int64_t* counts);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_H_
