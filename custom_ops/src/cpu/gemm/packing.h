// Packing: copies blocks of A and panels of B into the layout that the micro-kernel
// reads, and converts FP16 to FP32 (or pairs bfloat16) on the way.
//
//   A [m, k], any of the two orders -> rows of packed elements, row stride `stride`
//   B [k, n], any of the two orders -> panels of kPanel columns, each [steps, kPanel]
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_PACKING_H_
#define KERAS_MP_SRC_CPU_GEMM_PACKING_H_

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// to[0, count) = from[0, count)
template <class Simd, class Format>
static inline void Convert(const typename Format::Element* from, std::int64_t count,
                           float* to) {
  std::int64_t i = 0;
  for (; i + Simd::kWidth <= count; i += Simd::kWidth) {
    Store<Simd>(to + i, Format::Load(from + i));
  }
  if (i < count) {
    const typename Simd::Float rest = LoadPartial<Simd, Format>(from + i, count - i);
    StorePartial<Simd, Single<Simd>>(to + i, rest, count - i);
  }
}

// Packs blocks of a matrix whose elements `Source` reads.
template <class Simd, class Step, class Source>
class Packer {
 public:
  using Packed = typename Step::Packed;
  using Vector = typename Step::Vector;
  using Element = typename Source::Element;
  static constexpr int kWidth = Simd::kWidth, kElements = Step::kElements;
  static constexpr int kVectorElements = kWidth * kElements;

  // Rows of A: the packed element of step p of row i goes to to[i * stride + p], for
  // i < rows and `depth` elements along k. Writes whole vectors, and fills rows with
  // zeros up to a multiple of Step::kRowMultiple.
  static void Rows(const MatrixView& a, std::int64_t rows, std::int64_t depth, Packed* to,
                   std::int64_t stride) {
    for (std::int64_t i = rows; i < RoundUp(rows, Step::kRowMultiple); ++i) {
      std::fill_n(to + i * stride, StepsOf<Step>(depth), Packed{});
    }
    const auto* from = static_cast<const Element*>(a.data);
    if (a.column == 1) {
      // Rows ahead: the hardware's prefetcher starts anew in each of them.
      constexpr std::int64_t kAhead = 4;
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t p = 0; p < depth; p += kVectorElements) {
          __builtin_prefetch(from + (i + kAhead) * a.row + p);
          Write(to + i * stride + p / kElements, Along(from + i * a.row + p, depth - p));
        }
      }
      return;
    }
    for (std::int64_t p = 0; p < depth; p += kVectorElements) {
      Prefetch(from + (p + kVectorElements) * a.column, a.column,
               depth - p - kVectorElements, rows);
      for (std::int64_t i = 0; i < rows; i += kWidth) {
        Vector square[kWidth];
        for (int q = 0; q < kWidth; ++q) {
          const std::int64_t at = p + q * kElements;
          square[q] = Across(from + at * a.column + i, a.column, rows - i, depth - at);
        }
        Lanes<Simd>::Transpose(square);
        const std::int64_t count = std::min<std::int64_t>(kWidth, rows - i);
        for (std::int64_t q = 0; q < count; ++q) {
          Write(to + (i + q) * stride + p / kElements, square[q]);
        }
      }
    }
  }

  // Panels of B, each kPanel columns wide, the last one a multiple of kWidth: the packed
  // element of step p of column j of a panel of width w goes to to[p * w + j], with zeros
  // beyond the last column and element. Panels are kPanel * Step::kParts times the number
  // of steps apart.
  template <int kPanel>
  static void Panels(const MatrixView& b, std::int64_t depth, std::int64_t columns,
                     Packed* to) {
    const auto* from = static_cast<const Element*>(b.data);
    const std::int64_t steps = StepsOf<Step>(depth);
    const auto width = [columns](std::int64_t panel) {
      return std::min<std::int64_t>(kPanel, RoundUp(columns - panel, kWidth));
    };
    if (b.column == 1) {
      // Few rows at a time, for all panels: rows whose stride is a power of two share a
      // cache set, which does not hold many.
      constexpr std::int64_t kSteps = 4;
      for (std::int64_t p = 0; p < steps; p += kSteps) {
        for (std::int64_t j = 0; j < columns; j += kWidth) {
          const std::int64_t panel = j / kPanel * kPanel;
          Packed* at = to + panel * Step::kParts * steps + j - panel;
          for (std::int64_t q = p; q < std::min(p + kSteps, steps); ++q) {
            const Element* x = from + q * kElements * b.row + j;
            if (q + kSteps < steps) __builtin_prefetch(x + kSteps * kElements * b.row);
            Write(at + q * width(panel),
                  Across(x, b.row, columns - j, depth - q * kElements));
          }
        }
      }
      return;
    }
    for (std::int64_t j = 0; j < columns; j += kWidth) {
      const std::int64_t panel = j / kPanel * kPanel;
      Packed* at = to + panel * Step::kParts * steps + j - panel;
      const std::int64_t count = std::min<std::int64_t>(kWidth, columns - j);
      for (std::int64_t p = 0; p < steps; p += kWidth) {
        Vector square[kWidth];
        for (std::int64_t q = 0; q < kWidth; ++q) {
          square[q] = q < count ? Along(from + (j + q) * b.column + p * kElements,
                                        depth - p * kElements)
                                : Vector{};
        }
        Lanes<Simd>::Transpose(square);
        const std::int64_t rows = std::min<std::int64_t>(kWidth, steps - p);
        for (std::int64_t q = 0; q < rows; ++q) {
          Write(at + (p + q) * width(panel), square[q]);
        }
      }
    }
  }

 private:
  using Read = Reader<Simd, Step, Source>;

  static Vector Along(const Element* x, std::int64_t depth) {
    return depth >= kVectorElements ? Read::Along(x) : Read::AlongSome(x, depth);
  }

  static Vector Across(const Element* x, std::int64_t next, std::int64_t count,
                       std::int64_t depth) {
    if (count >= kWidth && depth >= kElements) return Read::Across(x, next);
    if (depth <= 0) return Vector{};
    return Read::AcrossSome(x, next, std::min<std::int64_t>(count, kWidth),
                            std::min<std::int64_t>(depth, kElements));
  }

  static void Write(Packed* to, Vector packed) {
    std::memcpy(to, &packed, sizeof packed);
  }

  // Prefetches the rows that are read next: hardware prefetchers miss rows that are far
  // apart and read for a few cache lines each.
  static void Prefetch(const Element* x, std::int64_t row, std::int64_t rows,
                       std::int64_t columns) {
    constexpr std::int64_t kLine = 64 / sizeof(Element);
    for (std::int64_t q = 0; q < std::min<std::int64_t>(rows, kVectorElements); ++q) {
      for (std::int64_t j = 0; j < columns; j += kLine) {
        __builtin_prefetch(x + q * row + j);
      }
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_PACKING_H_
