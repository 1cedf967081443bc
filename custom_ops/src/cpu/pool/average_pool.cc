// The driver of average pooling and of its gradient on a CPU: runs the kernel of the
// instruction set (cpu/pool/average_pool_kernel_simd.h) for each element of the result.
//
//   y[o] = round(mean of x over window o)
//   grad_x[i] = round(sum over the windows o that contain i of grad_y[o] / size of o)
//
// Both are weighted sums over a window of positions. x is [batch, a, b, c, channels] and
// y likewise, packed, in 16 bits.
//
//   cmake --build build/custom_ops --target average_pool_cpu_test &&
//     build/custom_ops/average_pool_cpu_test

#include "keras_mp/average_pool_cpu.h"

#include <algorithm>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"

namespace keras_mp {
namespace {

constexpr float kOne = 1;

// Of one dimension: the positions [first, first + count) that each result sums over, and
// the weights of the gradient.
struct WindowRanges {
  std::vector<std::int64_t> first, count;
  std::vector<float> weights;
};

// The part of each window that lies inside x.
WindowRanges Windows(const PooledDimension& d) {
  WindowRanges ranges;
  for (std::int64_t o = 0; o < d.pooled; ++o) {
    const std::int64_t begin = o * d.stride - d.before;
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, d.size);
    const std::int64_t end = std::clamp(begin + d.window, first, d.size);
    ranges.first.push_back(first);
    ranges.count.push_back(end - first);
    ranges.weights.push_back(1.0f / static_cast<float>(end - first));
  }
  return ranges;
}

// The windows that contain each position of x, with the weight of each window.
WindowRanges WindowsOfInputs(const PooledDimension& d) {
  WindowRanges ranges;
  ranges.weights = Windows(d).weights;
  for (std::int64_t i = 0; i < d.size; ++i) {
    const std::int64_t at = i + d.before;
    // The last window that begins here or before, and the first that ends behind.
    const std::int64_t last = std::min(at / d.stride, d.pooled - 1);
    const std::int64_t missed = std::max<std::int64_t>(0, at - d.window + d.stride);
    const std::int64_t first = at < d.window ? 0 : missed / d.stride;
    ranges.first.push_back(first);
    ranges.count.push_back(std::max<std::int64_t>(0, last - first + 1));
  }
  return ranges;
}

Status Check(const AveragePool& pool, Isa isa) {
  if (pool.batch < 0 || pool.channels < 0) {
    return {StatusCode::kInvalidArgument, "a size must not be negative"};
  }
  for (const PooledDimension& d : pool.dimensions) {
    if (d.size < 0 || d.pooled < 0 || d.window < 1 || d.stride < 1 || d.before < 0 ||
        d.before >= d.window) {
      return {StatusCode::kInvalidArgument,
              "window and stride must be 1 or more, and the first window reach into x"};
    }
    if (d.pooled > 0 && (d.pooled - 1) * d.stride - d.before >= d.size) {
      return {StatusCode::kInvalidArgument, "every window must reach into x"};
    }
  }
  if (pool.type == DataType::kFloat) {
    return {StatusCode::kInvalidArgument, "x must have 16 bits"};
  }
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// `sizes` are those of the tensor that is read. A mean has one weight for its whole
// window, which is applied once; a gradient has one for each position.
void SumWindows(const AveragePool& pool, const WindowRanges (&ranges)[3],
                const std::int64_t (&sizes)[3], bool is_mean, const Parallel& parallel,
                Isa isa) {
  const auto& kernel = *KernelsOf(isa)->average_pool;
  const auto results = [&](int d) {
    return static_cast<std::int64_t>(ranges[d].first.size());
  };
  const std::int64_t channels = pool.channels;
  const std::int64_t rows = pool.batch * results(0) * results(1);
  ParallelFor(parallel, rows, results(2) * channels, [&](std::int64_t row) {
    const std::int64_t n = row / (results(0) * results(1));
    std::int64_t at[3] = {row / results(1) % results(0), row % results(1), 0};
    PoolWindow window;
    window.weight_step = is_mean ? 0 : 1;
    std::int64_t distance = channels;
    for (int d = 2; d >= 0; --d) {
      window.stride[d] = distance;
      distance *= sizes[d];
    }
    const auto* from = static_cast<const std::uint16_t*>(pool.from) + n * distance;
    for (; at[2] < results(2); ++at[2]) {
      std::int64_t count = 1;
      for (int d = 0; d < 3; ++d) {
        window.first[d] = ranges[d].first[at[d]];
        window.count[d] = ranges[d].count[at[d]];
        window.weights[d] = is_mean ? &kOne : ranges[d].weights.data() + window.first[d];
        count *= window.count[d];
      }
      window.scale = is_mean ? 1.0f / static_cast<float>(count) : 1.0f;
      kernel.weighted_sum(pool.type, from, window, channels, pool.to,
                          (row * results(2) + at[2]) * channels);
    }
  });
}

}  // namespace

Status AveragePoolCpu(const AveragePool& pool, const Parallel& parallel, Isa isa) {
  const Status status = Check(pool, isa);
  if (!status.ok()) return status;
  const auto& [a, b, c] = pool.dimensions;
  if (IsEmpty({pool.batch, a.pooled, b.pooled, c.pooled, pool.channels})) return {};
  SumWindows(pool, {Windows(a), Windows(b), Windows(c)}, {a.size, b.size, c.size},
             /*is_mean=*/true, parallel, isa);
  return {};
}

Status AveragePoolGradientCpu(const AveragePool& pool, const Parallel& parallel,
                              Isa isa) {
  const Status status = Check(pool, isa);
  if (!status.ok()) return status;
  const auto& [a, b, c] = pool.dimensions;
  if (IsEmpty({pool.batch, a.size, b.size, c.size, pool.channels})) return {};
  SumWindows(pool, {WindowsOfInputs(a), WindowsOfInputs(b), WindowsOfInputs(c)},
             {a.pooled, b.pooled, c.pooled}, /*is_mean=*/false, parallel, isa);
  return {};
}

}  // namespace keras_mp
