// The driver of the sum along one dimension on a CPU: runs the kernel of the instruction
// set (cpu/norm/batch_norm_kernel_simd.h) on tiles, in parallel, and adds up their sums.
//
//   y[o, i] = sum over c of x[o, c, i]
//
// x is [outer, count, inner] in 16 bits, y [outer, inner] in FP32, both packed.
//
//   cmake --build build/custom_ops --target sum_cpu_test &&
//     build/custom_ops/sum_cpu_test

#include "keras_mp/sum_cpu.h"

#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/norm/channel_tiling.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/partial_sums.h"

namespace keras_mp {

Status SumCpu(const Sum& sum, const Parallel& parallel, Isa isa) {
  const Status status =
      CheckRows(std::min(sum.outer, sum.inner), sum.count, sum.type, isa);
  if (!status.ok() || IsEmpty({sum.outer, sum.inner})) return status;
  // Contiguous elements are those of one channel; else `inner` channels are interleaved
  // in each of `outer` slices.
  const bool is_contiguous = sum.inner == 1 && sum.count != 1;
  const ChannelShape shape = is_contiguous ? ChannelShape{1, sum.outer, sum.count}
                                    : ChannelShape{sum.count, sum.inner, 1};
  const std::int64_t slices = is_contiguous ? 1 : sum.outer;
  const ChannelTiling tiles(shape, sum.type);
  const std::int64_t parts = tiles.parts();
  PartialSums sums(slices * parts, shape.channels);
  if (!sums.ok()) return {StatusCode::kOutOfMemory, "no memory for partial sums"};

  const auto kernel = KernelsOf(isa)->batch_norm->sums;
  const auto* x = static_cast<const std::uint16_t*>(sum.x);
  ParallelFor(parallel, slices * tiles.size(), tiles.elements(), [&](std::int64_t i) {
    const std::int64_t slice = i / tiles.size();
    const std::uint16_t* begin = x + slice * shape.outer * shape.channels;
    const auto [part, c, tile] = tiles.At(i % tiles.size(), begin, nullptr, nullptr);
    kernel(tile, sums[slice * parts + part] + c);
  });
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      double total = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        total += sums[slice * parts + part][c];
      }
      sum.y[slice * shape.channels + c] = static_cast<float>(total);
    }
  }
  return {};
}

}  // namespace keras_mp
