// Copies a block of a matrix into terms, in the order in which the product reads them.

#ifndef KERAS_MP_SRC_CPU_GEMM_PACKING_H_
#define KERAS_MP_SRC_CPU_GEMM_PACKING_H_

#include <algorithm>
#include <cstdint>

#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/simd/shuffle.h"
#include "common/ceil_div.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// to[0, count) = from[0, count)
template <class Simd, class Format>
static inline void Convert(const std::uint16_t* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + Simd::kWidth <= count; i += Simd::kWidth) {
    Store<Simd>(to + i, Format::Load(from + i));
  }
  if (i < count) {
    const typename Simd::Float rest = LoadSome<Simd, Format>(from + i, count - i);
    StoreSome<Simd, Single<Simd>>(to + i, rest, count - i);
  }
}

// Packs blocks of a matrix whose numbers lie in memory as `Source` says.
template <class Simd, class Step, class Source>
class Packer {
 public:
  using Term = typename Step::Term;
  using Vector = typename Step::Vector;
  using Element = typename Source::Element;
  static constexpr int kWidth = Simd::kWidth, kNumbers = Step::kNumbers;
  static constexpr int kVectorNumbers = kWidth * kNumbers;

  // Rows of A: term p of row i goes to to[i * stride + p], for i < rows and `depth`
  // numbers along k. Writes whole vectors.
  static void Rows(const View& a, std::int64_t rows, std::int64_t depth, Term* to,
                   std::int64_t stride) {
    const auto* from = static_cast<const Element*>(a.data);
    if (a.column == 1) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t p = 0; p < depth; p += kVectorNumbers) {
          Write(to + i * stride + p / kNumbers, Along(from + i * a.row + p, depth - p));
        }
      }
      return;
    }
    for (std::int64_t p = 0; p < depth; p += kVectorNumbers) {
      Prefetch(from + (p + kVectorNumbers) * a.column, a.column,
               depth - p - kVectorNumbers, rows);
      for (std::int64_t i = 0; i < rows; i += kWidth) {
        Vector square[kWidth];
        for (int q = 0; q < kWidth; ++q) {
          const std::int64_t at = p + q * kNumbers;
          square[q] = Across(from + at * a.column + i, a.column, rows - i, depth - at);
        }
        Lanes<Simd>::Transpose(square);
        const std::int64_t count = std::min<std::int64_t>(kWidth, rows - i);
        for (std::int64_t q = 0; q < count; ++q) {
          Write(to + (i + q) * stride + p / kNumbers, square[q]);
        }
      }
    }
  }

  // Panels of B, each kPanel columns wide, the last one a multiple of kWidth: term p of
  // column j of a panel of width w goes to to[p * w + j], with zeros beyond the last
  // column. Panels follow each other at kPanel times the number of terms.
  template <int kPanel>
  static void Panels(const View& b, std::int64_t depth, std::int64_t columns,
                     Term* to) {
    const auto* from = static_cast<const Element*>(b.data);
    const std::int64_t terms = CeilDiv(depth, kNumbers);
    const auto width = [columns](std::int64_t panel) {
      return std::min<std::int64_t>(kPanel, RoundUp(columns - panel, kWidth));
    };
    if (b.column == 1) {
      // Few rows at a time, for all panels: rows whose distance is a power of two share
      // a set of the cache, which does not hold many.
      constexpr std::int64_t kTerms = 4;
      for (std::int64_t p = 0; p < terms; p += kTerms) {
        for (std::int64_t j = 0; j < columns; j += kWidth) {
          const std::int64_t panel = j / kPanel * kPanel;
          Term* at = to + panel * terms + j - panel;
          for (std::int64_t q = p; q < std::min(p + kTerms, terms); ++q) {
            const Element* x = from + q * kNumbers * b.row + j;
            if (q + kTerms < terms) __builtin_prefetch(x + kTerms * kNumbers * b.row);
            Write(at + q * width(panel),
                  Across(x, b.row, columns - j, depth - q * kNumbers));
          }
        }
      }
      return;
    }
    for (std::int64_t j = 0; j < columns; j += kWidth) {
      const std::int64_t panel = j / kPanel * kPanel;
      Term* at = to + panel * terms + j - panel;
      const std::int64_t count = std::min<std::int64_t>(kWidth, columns - j);
      for (std::int64_t p = 0; p < terms; p += kWidth) {
        Vector square[kWidth] = {};
        for (std::int64_t q = 0; q < count; ++q) {
          square[q] = Along(from + (j + q) * b.column + p * kNumbers,
                            depth - p * kNumbers);
        }
        Lanes<Simd>::Transpose(square);
        const std::int64_t rows = std::min<std::int64_t>(kWidth, terms - p);
        for (std::int64_t q = 0; q < rows; ++q) {
          Write(at + (p + q) * width(panel), square[q]);
        }
      }
    }
  }

 private:
  using Read = Reader<Simd, Step, Source>;

  static Vector Along(const Element* x, std::int64_t depth) {
    return depth >= kVectorNumbers ? Read::Along(x) : Read::AlongSome(x, depth);
  }

  static Vector Across(const Element* x, std::int64_t next, std::int64_t count,
                       std::int64_t depth) {
    if (count >= kWidth && depth >= kNumbers) return Read::Across(x, next);
    if (depth <= 0) return Vector{};
    return Read::AcrossSome(x, next, std::min<std::int64_t>(count, kWidth),
                            std::min<std::int64_t>(depth, kNumbers));
  }

  static void Write(Term* to, Vector terms) { std::memcpy(to, &terms, sizeof terms); }

  // Rows that are far apart, each read for a few cache lines only, are nothing the
  // machine foresees: this asks for those that come next.
  static void Prefetch(const Element* x, std::int64_t row, std::int64_t rows,
                       std::int64_t columns) {
    constexpr std::int64_t kLine = 64 / sizeof(Element);
    for (std::int64_t q = 0; q < std::min<std::int64_t>(rows, kVectorNumbers); ++q) {
      for (std::int64_t j = 0; j < columns; j += kLine) {
        __builtin_prefetch(x + q * row + j);
      }
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_PACKING_H_
