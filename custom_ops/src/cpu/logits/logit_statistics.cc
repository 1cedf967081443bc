// The driver of the statistics of logits on a CPU: goes over blocks of words, whose logits
// the GEMM computes, and runs the kernel of the instruction set
// (cpu/logits/logit_row_kernel_simd.h) on each row, in parallel.
//
//   z = cap(inputs * kernel + bias)
//
// keras_mp/logit_statistics.h has the rest.
//
//   cmake --build build/custom_ops --target logit_statistics_cpu_test &&
//     build/custom_ops/logit_statistics_cpu_test

#include "keras_mp/logit_statistics_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <utility>

#include "common/ceil_div.h"
#include "cpu/kernels.h"
#include "cpu/logits/logit_row_kernel.h"
#include "cpu/runtime/parallel.h"
#include "keras_mp/gemm_cpu.h"

namespace keras_mp {
namespace {

// A block of logits stays in a cache of the third level, and its products are large.
constexpr std::int64_t kBlockElements = std::int64_t{4} << 18;
constexpr std::int64_t kFewestWords = 256, kMostWords = 4096;
// An exponential takes as long as the conversion of so many numbers.
constexpr std::int64_t kWorkOfALogit = 8;
constexpr Status kOutOfMemory = {StatusCode::kOutOfMemory,
                                 "no memory for a block of logits"};

Status Check(const LinearLogits& l, Isa isa) {
  for (std::int64_t size : {l.rows, l.size, l.words}) {
    if (size < 0) return {StatusCode::kInvalidArgument, "a size must not be negative"};
  }
  if (l.kernel_type != l.type && l.kernel_type != DataType::kFloat) {
    return {StatusCode::kInvalidArgument,
            "the kernel must be of the type of the inputs, or FP32"};
  }
  if (!(l.soft_cap >= 0 && std::isfinite(l.soft_cap))) {
    return {StatusCode::kInvalidArgument,
            "the cap must be finite and above 0, or 0 for none"};
  }
  if ((l.labels == nullptr) == (l.targets == nullptr) && l.rows > 0) {
    return {StatusCode::kInvalidArgument, "there must be labels or targets"};
  }
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

template <class Element>
using Buffer = std::unique_ptr<Element[], decltype(&std::free)>;

template <class Element>
Buffer<Element> Allocate(std::int64_t count) {
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t bytes = std::max<std::int64_t>(1, count * sizeof(Element));
  return {static_cast<Element*>(std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment))), &std::free};
}

std::int64_t BytesOf(DataType type) { return type == DataType::kFloat ? 4 : 2; }

// Consecutive words, and their logits [rows, count].
struct Block {
  std::int64_t first, count;
  float* z;
};

// The products of a problem with a block of its words.
class Products {
 public:
  Products(const LinearLogits& logits, const Parallel& parallel, Isa isa)
      : l_(logits), parallel_(parallel), isa_(isa) {}

  // z = inputs * kernel + bias.
  Status Logits(const Block& block) const {
    Gemm gemm = WithKernel(block);
    gemm.m = l_.rows;
    gemm.n = block.count;
    gemm.k = l_.size;
    gemm.transpose_b = l_.transpose;
    gemm.a = l_.inputs;
    gemm.lda = l_.size;
    gemm.c = block.z;
    gemm.ldc = block.count;
    gemm.output = DataType::kFloat;
    if (l_.bias != nullptr) gemm.bias = l_.bias + block.first;
    gemm.bias_type = DataType::kFloat;
    return GemmCpu(gemm, parallel_, isa_);
  }

  // grad_inputs = alpha * slopes * kernel^T.
  Status GradInputs(const Block& block, const void* slopes, float alpha,
                    float* grad_inputs) const {
    Gemm gemm = WithKernel(block);
    gemm.m = l_.rows;
    gemm.n = l_.size;
    gemm.k = block.count;
    gemm.transpose_b = !l_.transpose;
    gemm.a = slopes;
    gemm.lda = block.count;
    gemm.c = grad_inputs;
    gemm.ldc = l_.size;
    gemm.output = DataType::kFloat;
    gemm.alpha = &alpha;
    return GemmCpu(gemm, parallel_, isa_);
  }

  // The block of grad_kernel = round(alpha * inputs^T * slopes), or its transpose.
  Status GradKernel(const Block& block, const void* slopes, float alpha,
                    void* grad_kernel) const {
    Gemm gemm;
    gemm.input = l_.type;
    gemm.output = l_.kernel_type;
    gemm.k = l_.rows;
    gemm.m = l_.size;
    gemm.n = block.count;
    gemm.a = l_.inputs;
    gemm.lda = l_.size;
    gemm.b = slopes;
    gemm.ldb = block.count;
    gemm.ldc = l_.words;
    if (l_.transpose) {
      std::swap(gemm.m, gemm.n);
      std::swap(gemm.a, gemm.b);
      std::swap(gemm.lda, gemm.ldb);
      gemm.ldc = l_.size;
    }
    gemm.transpose_a = true;
    gemm.c = static_cast<char*>(grad_kernel) + FirstOf(block) * BytesOf(l_.kernel_type);
    gemm.alpha = &alpha;
    return GemmCpu(gemm, parallel_, isa_);
  }

 private:
  // Where the block begins in the kernel.
  std::int64_t FirstOf(const Block& block) const {
    return l_.transpose ? block.first * l_.size : block.first;
  }

  Gemm WithKernel(const Block& block) const {
    Gemm gemm;
    gemm.input = l_.type;
    gemm.rounds_b = l_.kernel_type == DataType::kFloat;
    gemm.b = static_cast<const char*>(l_.kernel) +
             FirstOf(block) * BytesOf(l_.kernel_type);
    gemm.ldb = l_.transpose ? l_.size : l_.words;
    return gemm;
  }

  const LinearLogits& l_;
  const Parallel& parallel_;
  Isa isa_;
};

LogitRow RowOf(const LinearLogits& l, const Block& block, std::int64_t row) {
  LogitRow found = {block.z + row * block.count, block.count, l.soft_cap, -1, nullptr};
  if (l.labels != nullptr) {
    found.label = l.labels[row] - block.first;
  } else {
    found.targets = l.targets + row * l.words + block.first;
  }
  return found;
}

std::int64_t WordsOfBlock(const LinearLogits& l) {
  const std::int64_t fitting = kBlockElements / std::max<std::int64_t>(1, l.rows);
  const std::int64_t words =
      std::clamp(fitting / kFewestWords * kFewestWords, kFewestWords, kMostWords);
  return std::min(words, l.words);
}

// Calls work(block) for each block of the words.
template <class Work>
Status ForBlocks(const LinearLogits& l, float* z, const Work& work) {
  const std::int64_t count = WordsOfBlock(l);
  for (std::int64_t first = 0; first < l.words; first += count) {
    const Status status = work(Block{first, std::min(count, l.words - first), z});
    if (!status.ok()) return status;
  }
  return {};
}

// Brings the largest upstream gradient in FP16 to 2^14 or more, below 2^15.
float ScaleOf(const LinearLogits& l, const LogitStatisticsGradient& g) {
  if (l.type != DataType::kHalf) return 1;
  float largest = 0;
  for (std::int64_t r = 0; r < l.rows; ++r) {
    const float all = std::abs(g.grad_logsumexp[r]) + std::abs(g.grad_target[r]) +
                      std::abs(g.grad_total[r]);
    if (!std::isfinite(all)) return 1;
    largest = std::max(largest, all);
  }
  if (largest == 0) return 1;
  return std::ldexp(1.0f, std::min(14 - std::ilogb(largest), 100));
}

}  // namespace

Status LogitStatisticsCpu(const LinearLogits& l, const LogitStatistics& statistics,
                          const Parallel& parallel, Isa isa) {
  const Status status = Check(l, isa);
  if (!status.ok() || l.rows == 0) return status;
  const LogitRowKernel& kernel = *KernelsOf(isa)->logit_row;
  const Products products(l, parallel, isa);
  const auto z = Allocate<float>(l.rows * WordsOfBlock(l));
  const auto known = Allocate<RowStatistics>(l.rows);
  if (z == nullptr || known == nullptr) return kOutOfMemory;
  std::fill_n(known.get(), l.rows, RowStatistics());
  const Status done = ForBlocks(l, z.get(), [&](const Block& block) {
    const Status multiplied = products.Logits(block);
    if (!multiplied.ok()) return multiplied;
    ParallelFor(parallel, l.rows, block.count * kWorkOfALogit, [&](std::int64_t row) {
      kernel.add(RowOf(l, block, row), block.first, &known[row]);
    });
    return Status();
  });
  if (!done.ok()) return done;
  for (std::int64_t row = 0; row < l.rows; ++row) {
    const RowStatistics& one = known[row];
    statistics.logsumexp[row] = one.maximum + std::log(one.exponentials);
    statistics.target[row] = one.target;
    statistics.total[row] = one.total;
    statistics.argmax[row] = one.argmax;
  }
  return {};
}

Status LogitStatisticsGradientCpu(const LinearLogits& l, const LogitStatisticsGradient& g,
                                  const Parallel& parallel, Isa isa) {
  const Status status = Check(l, isa);
  if (!status.ok()) return status;
  const LogitRowKernel& kernel = *KernelsOf(isa)->logit_row;
  const Products products(l, parallel, isa);
  const std::int64_t words = WordsOfBlock(l), elements = l.rows * l.size;
  // The rows of a part add their slopes to sums of its own, in order.
  constexpr std::int64_t kRowsOfPart = 64;
  const std::int64_t parts = CeilDiv(l.rows, kRowsOfPart);
  const auto z = Allocate<float>(l.rows * words);
  // In FP32 the slopes of a block take the place of its logits.
  const bool is_float = l.type == DataType::kFloat;
  const auto halves = Allocate<std::uint16_t>(is_float ? 0 : l.rows * words);
  void* const slopes = is_float ? static_cast<void*>(z.get()) : halves.get();
  const auto sums = Allocate<float>(elements), terms = Allocate<float>(elements);
  const auto bias_sums = Allocate<float>(g.grad_bias == nullptr ? 0 : parts * words);
  if (!z || !halves || !sums || !terms || !bias_sums) return kOutOfMemory;
  std::fill_n(sums.get(), elements, 0.0f);
  const float scale = ScaleOf(l, g);

  const auto differentiate = [&](const Block& block, std::int64_t part) {
    float* of_bias = nullptr;
    if (g.grad_bias != nullptr) {
      of_bias = bias_sums.get() + part * block.count;
      std::fill_n(of_bias, block.count, 0.0f);
    }
    const std::int64_t end = std::min(l.rows, (part + 1) * kRowsOfPart);
    for (std::int64_t row = part * kRowsOfPart; row < end; ++row) {
      const RowUpstream upstream = {g.logsumexp[row], g.grad_logsumexp[row],
                                    g.grad_target[row], g.grad_total[row]};
      void* of_row = static_cast<char*>(slopes) + row * block.count * BytesOf(l.type);
      kernel.differentiate(RowOf(l, block, row), upstream, l.type, scale, of_row, of_bias);
    }
  };

  const Status done = ForBlocks(l, z.get(), [&](const Block& block) {
    Status multiplied = products.Logits(block);
    if (!multiplied.ok()) return multiplied;
    ParallelFor(parallel, parts, kRowsOfPart * block.count * kWorkOfALogit,
                [&](std::int64_t part) { differentiate(block, part); });
    if (g.grad_bias != nullptr) {
      float* of_block = g.grad_bias + block.first;
      std::fill_n(of_block, block.count, 0.0f);
      for (std::int64_t part = 0; part < parts; ++part) {
        kernel.accumulate(bias_sums.get() + part * block.count, block.count, of_block);
      }
    }
    multiplied = products.GradKernel(block, slopes, 1 / scale, g.grad_kernel);
    if (!multiplied.ok() || elements == 0) return multiplied;
    multiplied = products.GradInputs(block, slopes, 1 / scale, terms.get());
    if (!multiplied.ok()) return multiplied;
    ParallelFor(parallel, l.rows, l.size, [&](std::int64_t row) {
      kernel.accumulate(terms.get() + row * l.size, l.size, sums.get() + row * l.size);
    });
    return Status();
  });
  if (!done.ok()) return done;
  ParallelFor(parallel, l.rows, l.size, [&](std::int64_t row) {
    kernel.round(sums.get() + row * l.size, l.size, l.type,
                 static_cast<char*>(g.grad_inputs) + row * l.size * BytesOf(l.type));
  });
  return {};
}

}  // namespace keras_mp
