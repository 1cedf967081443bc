// Products of packed blocks for the attention kernel: the packing and the micro-kernel of
// the GEMM, without its cache blocking.
//
//   C[i, j] (+)= sum over k of A[i, k] * B[k, j]
//
// The packed rows of A and panels of B are those of cpu/gemm/packing.h, in chunks of
// kSteps steps along k. C is FP32, row-major.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_BLOCK_PRODUCT_H_
#define KERAS_MP_SRC_CPU_ATTENTION_BLOCK_PRODUCT_H_

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cpu/attention/attention_kernel.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/gemm/packing.h"
#include "cpu/gemm/tile_register_micro_kernel.h"

namespace keras_mp {

// The row stride of a packed block of A, and of a tile of scores, which becomes one; + 16
// puts neighbours into different cache sets.
inline constexpr std::int64_t kBlockStride = kAttentionBlock + 16;

template <class Simd, class Step>
struct BlockProduct {
  using Packed = typename Step::Packed;
  using Scope = typename Step::Scope;
  static constexpr int kRowMultiple = Step::kRowMultiple, kParts = Step::kParts;
  static constexpr int kVectors = 2;
  static constexpr int kPanel = kVectors * Simd::kWidth;
  static constexpr std::int64_t kSteps = kAttentionBlock;
  static constexpr std::int64_t kChunk = kSteps * Step::kElements;  // along k
  static constexpr std::int64_t kSizeOfRowChunk =
      kAttentionBlock * kParts * kBlockStride;
  static_assert(kAttentionBlock % kRowMultiple == 0);

  // Elements of a packed A with `depth` elements along k and up to kAttentionBlock rows,
  // and of a packed B.
  static std::int64_t SizeOfRows(std::int64_t depth) {
    return Chunks(depth) * kSizeOfRowChunk;
  }
  static std::int64_t SizeOfPanels(std::int64_t depth, std::int64_t columns) {
    return Chunks(depth) * SizeOfPanelChunk(columns);
  }

  // `Source` reads the matrix, as in cpu/gemm/multiply_accumulate.h.
  template <class Source, int kPart = 0>
  static void PackRows(const MatrixView& a, std::int64_t rows, std::int64_t depth,
                       Packed* to) {
    using Part = PartOf<Simd, Step, Source, kPart>;
    for (std::int64_t p = 0; p < depth; p += kChunk) {
      Packer<Simd, Step, Part>::Rows(a.At(0, p), rows, std::min(kChunk, depth - p),
                                     to + p / kChunk * kSizeOfRowChunk +
                                         kPart * kBlockStride,
                                     kParts * kBlockStride);
    }
    if constexpr (kPart + 1 < kParts) PackRows<Source, kPart + 1>(a, rows, depth, to);
  }

  template <class Source, int kPart = 0>
  static void PackPanels(const MatrixView& b, std::int64_t depth, std::int64_t columns,
                         Packed* to) {
    using Part = PartOf<Simd, Step, Source, kPart>;
    for (std::int64_t p = 0; p < depth; p += kChunk) {
      const std::int64_t of_chunk = std::min(kChunk, depth - p);
      Packer<Simd, Step, Part>::template Panels<kPanel>(
          b.At(p, 0), of_chunk, columns,
          to + p / kChunk * SizeOfPanelChunk(columns) +
              kPart * kPanel * StepsOf<Step>(of_chunk));
    }
    if constexpr (kPart + 1 < kParts) PackPanels<Source, kPart + 1>(b, depth, columns, to);
  }

  // c = or += (where `accumulate`) packed A times packed B. Writes whole vectors, and rows
  // up to a multiple of kRowMultiple.
  static void Multiply(const Packed* a, std::int64_t rows, const Packed* b,
                       std::int64_t depth, std::int64_t columns, bool accumulate,
                       float* c, std::int64_t c_row) {
    // An empty sum is written, too.
    for (std::int64_t p = 0; p == 0 || p < depth; p += kChunk) {
      const std::int64_t steps = StepsOf<Step>(std::min(kChunk, depth - p));
      for (std::int64_t j = 0; j < columns; j += kPanel) {
        constexpr int kRows = Simd::kMicroRows;
        // A last panel one vector wide leaves registers for twice as many rows.
        const auto multiply =
            columns - j <= Simd::kWidth
                ? MicroKernelRows<Simd, Step, kVectors * kRows, 1, kBlockStride>::Run
                : MicroKernelRows<Simd, Step, kRows, kVectors, kBlockStride>::Run;
        multiply(a, rows, b + j * kParts * steps, steps, accumulate || p > 0, c + j, c_row);
      }
      a += kSizeOfRowChunk;
      b += SizeOfPanelChunk(columns);
    }
  }

 private:
  static std::int64_t Chunks(std::int64_t depth) {
    return std::max<std::int64_t>(1, CeilDiv(depth, kChunk));
  }
  static std::int64_t SizeOfPanelChunk(std::int64_t columns) {
    return kSteps * kParts * RoundUp(columns, kPanel);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_BLOCK_PRODUCT_H_
