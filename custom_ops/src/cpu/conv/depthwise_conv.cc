// The driver of the depthwise convolution and its gradients on a CPU: runs the kernel of
// the instruction set (cpu/conv/depthwise_conv_kernel_simd.h) for each row of the result.
//
// y and grad_x are both weighted sums: y[o] of the elements of x that the kernel meets at
// o, and grad_x[i] of the elements of grad_y where the kernel meets i.
//
//   cmake --build build/custom_ops --target depthwise_conv_cpu_test &&
//     build/custom_ops/depthwise_conv_cpu_test

#include "keras_mp/depthwise_conv_cpu.h"

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "common/ceil_div.h"
#include "common/convolved_position.h"
#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/partial_sums.h"

namespace keras_mp {
namespace {

// Positions of a result, a step apart, that sum over the same elements of the kernel.
struct Run {
  std::int64_t begin, results;
  std::int64_t first, count;  // of the elements of the kernel
  std::int64_t source;        // the position that meets the first one
};

// The sums along one dimension.
struct DimensionSums {
  std::vector<Run> runs;
  std::int64_t kernel_step, source_step;  // from one element of the kernel to the next
  // From one result of a run to the next, and between the sources of both.
  std::int64_t step, advance;
};

// The positions that `position` finds for a result are an arithmetic progression, in the
// order of the kernel or in the reverse one.
template <class Position>
Run RunAt(const ConvolvedDimension& d, std::int64_t result, const Position& position,
          bool is_reverse) {
  Run run = {result, 1, 0, 0, 0};
  for (std::int64_t i = 0; i < d.kernel; ++i) {
    const std::int64_t k = is_reverse ? d.kernel - 1 - i : i;
    const std::int64_t source = position(d, result, k);
    if (source == kNowhere) continue;
    if (run.count++ > 0) continue;
    run.first = k;
    run.source = source;
  }
  return run;
}

template <class Position>
void AddRuns(const ConvolvedDimension& d, std::int64_t results, const Position& position,
             DimensionSums* sums) {
  for (std::int64_t phase = 0; phase < std::min(sums->step, results); ++phase) {
    sums->runs.push_back(RunAt(d, phase, position, sums->kernel_step < 0));
    for (std::int64_t r = phase + sums->step; r < results; r += sums->step) {
      const Run run = RunAt(d, r, position, sums->kernel_step < 0);
      Run& last = sums->runs.back();
      if (run.first == last.first && run.count == last.count &&
          run.source == last.source + last.results * sums->advance) {
        ++last.results;
      } else {
        sums->runs.push_back(run);
      }
    }
  }
}

DimensionSums SumsOfY(const ConvolvedDimension& d) {
  DimensionSums sums = {{}, 1, d.dilation, /*step=*/1, /*advance=*/d.stride};
  AddRuns(d, d.result, PositionInX, &sums);
  return sums;
}

DimensionSums SumsOfGradX(const ConvolvedDimension& d) {
  const std::int64_t common = std::gcd(d.stride, d.dilation);
  DimensionSums sums = {
      {}, -d.stride / common, d.dilation / common, /*step=*/d.stride, /*advance=*/1};
  AddRuns(d, d.size, PositionInY, &sums);
  return sums;
}

Status Check(const DepthwiseConv& conv, Isa isa) {
  const Status status = CheckConv(conv);
  if (!status.ok()) return status;
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// Returns the status of `compute`, whose containers may find no memory: no exception is to
// leave a kernel.
template <class Compute>
Status WithMemory(const Compute& compute) {
  try {
    return compute();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for a depthwise convolution"};
  }
}

std::unique_ptr<float[]> Allocate(std::int64_t count) {
  return std::unique_ptr<float[]>(new (std::nothrow) float[count + 1]);
}

// The tensors of a weighted sum. `sizes` are those of `from`.
struct WeightedSums {
  DimensionSums rows, columns;
  std::int64_t sizes[2], results[2];
  const void* from;
  const void* bias;  // null for none
  DataType bias_type;
  void* to;
  DataType to_type;
};

Status SumWeighted(const DepthwiseConv& conv, const void* kernel,
                   const WeightedSums& sums, const Parallel& parallel, Isa isa) {
  const auto& functions = *KernelsOf(isa)->depthwise_conv;
  const std::int64_t channels = conv.channels;
  const std::int64_t kernel_row = conv.dimensions[1].kernel * channels;
  const std::int64_t kernel_size = conv.dimensions[0].kernel * kernel_row;
  const auto weights = Allocate(kernel_size), start = Allocate(channels);
  if (weights == nullptr || start == nullptr) {
    return {StatusCode::kOutOfMemory, "no memory for the kernel"};
  }
  functions.widen(conv.type, conv.kernel_type == DataType::kFloat, kernel, kernel_size,
                  weights.get());
  if (sums.bias == nullptr) {
    std::fill_n(start.get(), channels, 0.0f);
  } else if (sums.bias_type == DataType::kFloat) {
    std::copy_n(static_cast<const float*>(sums.bias), channels, start.get());
  } else {
    functions.widen(conv.type, /*is_float=*/false, sums.bias, channels, start.get());
  }

  // For each result of the first dimension, its run.
  std::vector<const Run*> run_of(sums.results[0]);
  for (const Run& run : sums.rows.runs) {
    for (std::int64_t i = 0; i < run.results; ++i) {
      run_of[run.begin + i * sums.rows.step] = &run;
    }
  }
  const std::int64_t element_size = sums.to_type == DataType::kFloat ? 4 : 2;
  const std::int64_t row_size = sums.results[1] * channels;
  const std::int64_t from_row = sums.sizes[1] * channels;
  // So that a task is several rows: the first one of a task finds nothing in the cache that
  // it shares with the row before.
  const std::int64_t work = kernel_size * sums.results[1] / 36;
  ParallelFor(parallel, conv.batch * sums.results[0], work, [&](std::int64_t i) {
    const std::int64_t n = i / sums.results[0], at = i % sums.results[0];
    const Run& outer = *run_of[at];
    const std::int64_t source =
        outer.source + (at - outer.begin) / sums.rows.step * sums.rows.advance;
    const auto* from = static_cast<const std::uint16_t*>(sums.from) +
                       (n * sums.sizes[0] + source) * from_row;
    auto* to = static_cast<char*>(sums.to) + i * row_size * element_size;
    for (const Run& run : sums.columns.runs) {
      const ConvolvedRow row = {
          run.results,
          channels,
          sums.columns.advance * channels,
          sums.columns.step * channels,
          {outer.count, run.count},
          {sums.rows.source_step * from_row, sums.columns.source_step * channels},
          {sums.rows.kernel_step * kernel_row, sums.columns.kernel_step * channels}};
      functions.weighted_sums(
          conv.type, row, from + run.source * channels,
          weights.get() + outer.first * kernel_row + run.first * channels, start.get(),
          sums.to_type, to + run.begin * channels * element_size);
    }
  });
  return {};
}

// Products of a row of x and a row of grad_y that are summed in registers, at most.
constexpr std::int64_t kSpan = 256;

// The sums of products for one row of the kernel.
class ProductSums {
 public:
  ProductSums(const DepthwiseConv& conv, Isa isa)
      : type_(conv.type),
        channels_(conv.channels),
        columns_(conv.dimensions[1]),
        kernel_(*KernelsOf(isa)->depthwise_conv) {
    for (std::int64_t k = 0; k < columns_.kernel; ++k) ranges_.push_back(Meeting(k));
  }

  // sums[k, c] += sum over p of x[position of p and k, c] * grad_y[p, c]
  void Add(const std::uint16_t* x, const std::uint16_t* grad_y, float* sums) const {
    const bool slides = columns_.stride == 1 && columns_.dilation == 1;
    std::int64_t k = 0;
    for (; slides && k + kSlidingColumns <= columns_.kernel; k += kSlidingColumns) {
      Range all = ranges_[k];
      for (int j = 1; j < kSlidingColumns; ++j) {
        all.begin = std::max(all.begin, ranges_[k + j].begin);
        all.end = std::min(all.end, ranges_[k + j].end);
      }
      all.end = std::max(all.begin, all.end);
      ForSpans(all, [&](std::int64_t p, std::int64_t count) {
        kernel_.sliding_product_sums(type_, count, channels_, x + InX(p, k),
                                     grad_y + p * channels_, sums + k * channels_);
      });
      for (int j = 0; j < kSlidingColumns; ++j) {
        const Range& range = ranges_[k + j];
        AddColumn(k + j, {range.begin, std::min(all.begin, range.end)}, x, grad_y, sums);
        AddColumn(k + j, {std::max(all.end, range.begin), range.end}, x, grad_y, sums);
      }
    }
    for (; k < columns_.kernel; ++k) AddColumn(k, ranges_[k], x, grad_y, sums);
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };

  // The columns of y that meet x at column k of the kernel: adjacent ones.
  Range Meeting(std::int64_t k) const {
    Range range = {0, 0};
    const auto meets = [&](std::int64_t p) {
      return PositionInX(columns_, p, k) != kNowhere;
    };
    while (range.begin < columns_.result && !meets(range.begin)) ++range.begin;
    range.end = range.begin;
    while (range.end < columns_.result && meets(range.end)) ++range.end;
    return range;
  }

  std::int64_t InX(std::int64_t p, std::int64_t k) const {
    return PositionInX(columns_, p, k) * channels_;
  }

  template <class Body>
  static void ForSpans(const Range& range, const Body& body) {
    for (std::int64_t p = range.begin; p < range.end; p += kSpan) {
      body(p, std::min(kSpan, range.end - p));
    }
  }

  void AddColumn(std::int64_t k, const Range& range, const std::uint16_t* x,
                 const std::uint16_t* grad_y, float* sums) const {
    ForSpans(range, [&](std::int64_t p, std::int64_t count) {
      kernel_.product_sums(type_, count, channels_, x + InX(p, k),
                           columns_.stride * channels_, grad_y + p * channels_, channels_,
                           sums + k * channels_);
    });
  }

  DataType type_;
  std::int64_t channels_;
  const ConvolvedDimension& columns_;
  const DepthwiseConvKernel& kernel_;
  std::vector<Range> ranges_;
};

// The gradient of the kernel, if no size is 0.
Status SumProducts(const DepthwiseConv& conv, const void* x, const void* grad_y,
                   float* grad_kernel, const Parallel& parallel, Isa isa) {
  const auto& [rows, columns] = conv.dimensions;
  const std::int64_t channels = conv.channels;
  const std::int64_t size = rows.kernel * columns.kernel * channels;
  // Each part sums the products of some rows of y, in spans of columns.
  constexpr std::int64_t kSpansPerPart = 256, kParts = 64;
  const std::int64_t all_rows = conv.batch * rows.result;
  // A row may have two more, short ones at its ends.
  const std::int64_t spans = CeilDiv(columns.result, kSpan) + 2;
  const std::int64_t rows_per_part = std::max<std::int64_t>(
      1, std::min(CeilDiv(all_rows, kParts), kSpansPerPart / spans));
  const std::int64_t parts = CeilDiv(all_rows, rows_per_part);
  PartialSums sums(parts, size);
  if (!sums.ok()) return {StatusCode::kOutOfMemory, "no memory for partial sums"};

  const ProductSums row_sums(conv, isa);
  const std::int64_t work =
      rows_per_part * columns.result * channels * rows.kernel * columns.kernel;
  ParallelFor(parallel, parts, work, [&](std::int64_t part) {
    std::fill_n(sums[part], size, 0.0f);
    const std::int64_t end = std::min((part + 1) * rows_per_part, all_rows);
    for (std::int64_t row = part * rows_per_part; row < end; ++row) {
      const auto* from_y =
          static_cast<const std::uint16_t*>(grad_y) + row * columns.result * channels;
      for (std::int64_t i = 0; i < rows.kernel; ++i) {
        const std::int64_t a = PositionInX(rows, row % rows.result, i);
        if (a == kNowhere) continue;
        const auto* from_x =
            static_cast<const std::uint16_t*>(x) +
            (row / rows.result * rows.size + a) * columns.size * channels;
        row_sums.Add(from_x, from_y, sums[part] + i * columns.kernel * channels);
      }
    }
  });
  ParallelFor(parallel, size, parts, [&](std::int64_t i) {
    double total = 0;
    for (std::int64_t part = 0; part < parts; ++part) total += sums[part][i];
    grad_kernel[i] = static_cast<float>(total);
  });
  return {};
}

}  // namespace

Status DepthwiseConvCpu(const DepthwiseConv& conv, const void* x, const void* kernel,
                        const void* bias, DataType bias_type, void* y, DataType y_type,
                        const Parallel& parallel, Isa isa) {
  const Status types = CheckConv(conv, bias_type, y_type);
  if (!types.ok()) return types;
  const Status status = Check(conv, isa);
  if (!status.ok()) return status;
  const auto& [rows, columns] = conv.dimensions;
  if (IsEmpty({conv.batch, rows.result, columns.result, conv.channels})) return {};
  return WithMemory([&] {
    return SumWeighted(conv, kernel,
                       {SumsOfY(rows),
                        SumsOfY(columns),
                        {rows.size, columns.size},
                        {rows.result, columns.result},
                        x,
                        bias,
                        bias_type,
                        y,
                        y_type},
                       parallel, isa);
  });
}

Status DepthwiseConvGradXCpu(const DepthwiseConv& conv, const void* kernel,
                             const void* grad_y, void* grad_x, const Parallel& parallel,
                             Isa isa) {
  const Status status = Check(conv, isa);
  if (!status.ok()) return status;
  const auto& [rows, columns] = conv.dimensions;
  if (IsEmpty({conv.batch, rows.size, columns.size, conv.channels})) return {};
  return WithMemory([&] {
    return SumWeighted(conv, kernel,
                       {SumsOfGradX(rows),
                        SumsOfGradX(columns),
                        {rows.result, columns.result},
                        {rows.size, columns.size},
                        grad_y,
                        /*bias=*/nullptr,
                        DataType::kFloat,
                        grad_x,
                        conv.type},
                       parallel, isa);
  });
}

Status DepthwiseConvGradKernelCpu(const DepthwiseConv& conv, const void* x,
                                  const void* grad_y, float* grad_kernel,
                                  const Parallel& parallel, Isa isa) {
  const Status status = Check(conv, isa);
  if (!status.ok()) return status;
  const auto& [rows, columns] = conv.dimensions;
  const std::int64_t channels = conv.channels;
  if (IsEmpty({rows.kernel, columns.kernel, channels})) return {};
  const std::int64_t size = rows.kernel * columns.kernel * channels;
  std::fill_n(grad_kernel, size, 0.0f);
  if (IsEmpty({conv.batch, rows.size, columns.size, rows.result, columns.result})) {
    return {};
  }

  return WithMemory(
      [&] { return SumProducts(conv, x, grad_y, grad_kernel, parallel, isa); });
}

}  // namespace keras_mp
