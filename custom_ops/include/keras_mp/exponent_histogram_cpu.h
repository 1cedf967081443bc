// The histogram of the exponents of a tensor on a CPU, in one pass: the figures 2b and 3
// of "Mixed Precision Training" (Micikevicius et al., 2018).
//
//   counts[0]        zeros
//   counts[e + 150]  magnitudes in [2^e, 2^(e + 1)), for e from -149 to 127
//   counts[278]      infinities
//   counts[279]      NaN
//
// The counts are exact for any size. They rest on the bits of the numbers, so a processor
// that is set to flush subnormal numbers to zero counts these all the same.

#ifndef KERAS_MP_EXPONENT_HISTOGRAM_CPU_H_
#define KERAS_MP_EXPONENT_HISTOGRAM_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

namespace keras_mp {

inline constexpr int kExponentBins = 280;
inline constexpr int kZeroBin = 0, kInfinityBin = 278, kNanBin = 279;
inline constexpr int kBinOfOne = 150;  // of the magnitudes in [1, 2)

struct ExponentHistogram {
  std::int64_t size = 0;
  DataType type = DataType::kFloat;  // of x
  const void* x = nullptr;           // [size], in host memory
  std::int64_t* counts = nullptr;    // [kExponentBins], written
};

// The counts are the same for every `isa` and any number of threads.
Status ExponentHistogramCpu(const ExponentHistogram& histogram,
                            const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_EXPONENT_HISTOGRAM_CPU_H_
