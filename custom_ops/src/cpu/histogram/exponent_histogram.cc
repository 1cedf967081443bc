// The driver of the histogram of exponents on a CPU: runs the kernel of the instruction
// set (cpu/histogram/exponent_histogram_kernel_simd.h) on chunks, in parallel, and adds
// their counts.
//
//   cmake --build build/custom_ops --target exponent_histogram_cpu_test &&
//     build/custom_ops/exponent_histogram_cpu_test
//   python benchmarks/exponent_histogram.py

#include "keras_mp/exponent_histogram_cpu.h"

#include <algorithm>
#include <mutex>

#include "common/ceil_div.h"
#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"

namespace keras_mp {
namespace {

// Elements that one thread counts before it adds to the result: 10 microseconds of work.
constexpr std::int64_t kChunk = 1 << 16;

}  // namespace

Status ExponentHistogramCpu(const ExponentHistogram& histogram, const Parallel& parallel,
                            Isa isa) {
  const std::int64_t size = histogram.size;
  if (size < 0) return {StatusCode::kInvalidArgument, "the size must not be negative"};
  if (!IsSupported(isa)) return kUnsupportedIsa;
  const auto count = KernelsOf(isa)->exponent_histogram->count;
  std::fill_n(histogram.counts, kExponentBins, 0);
  std::mutex mutex;
  ParallelFor(parallel, CeilDiv(size, kChunk), kChunk, [&](std::int64_t chunk) {
    const std::int64_t first = chunk * kChunk;
    std::int64_t counts[kExponentBins] = {};
    count(histogram.type, histogram.x, first, std::min(kChunk, size - first), counts);
    const std::lock_guard<std::mutex> lock(mutex);
    for (int bin = 0; bin < kExponentBins; ++bin) histogram.counts[bin] += counts[bin];
  });
  return {};
}

}  // namespace keras_mp
