// Products of few rows, down to a vector times a matrix: B is not packed, but read
// once, in the order in which it lies in memory.

#ifndef KERAS_MP_SRC_CPU_GEMM_SKINNY_GEMM_H_
#define KERAS_MP_SRC_CPU_GEMM_SKINNY_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd, class Step, class Source>
class FewRows {
 public:
  using Term = typename Step::Term;

  // c[i * c_row + j] += the sum over the `depth` numbers along k of A(i, .) B(., j),
  // for i < rows and j < columns; A as terms, whose rows are a_row apart and end with
  // zeros.
  static void Multiply(const Term* a, std::int64_t a_row, std::int64_t rows,
                       const View& b, std::int64_t depth, std::int64_t columns,
                       float* c, std::int64_t c_row) {
    const auto* from = static_cast<const Element*>(b.data);
    if (b.column == 1) {
      Sweep(a, a_row, rows, from, b.row, depth, columns, c, c_row);
    } else {
      Dots(a, a_row, rows, from, b.column, depth, columns, c, c_row);
    }
  }

 private:
  using Float = typename Simd::Float;
  using Vector = typename Step::Vector;
  using Element = typename Source::Element;
  using Read = Reader<Simd, Step, Source>;
  static constexpr int kWidth = Simd::kWidth, kNumbers = Step::kNumbers;

  // The rows of B lie in memory one after the other: each is swept while c stays in the
  // L1 cache.
  static void Sweep(const Term* a, std::int64_t a_row, std::int64_t rows,
                    const Element* b, std::int64_t b_row, std::int64_t depth,
                    std::int64_t columns, float* c, std::int64_t c_row) {
    constexpr int kTerms = 4;
    std::int64_t p = 0;
    for (; p + kTerms * kNumbers <= depth; p += kTerms * kNumbers) {
      SweepAllRows<kTerms>(a + p / kNumbers, a_row, rows, b + p * b_row, b_row,
                           kTerms * kNumbers, columns, c, c_row);
    }
    for (; p < depth; p += kNumbers) {
      const std::int64_t numbers = std::min<std::int64_t>(kNumbers, depth - p);
      SweepAllRows<1>(a + p / kNumbers, a_row, rows, b + p * b_row, b_row, numbers,
                      columns, c, c_row);
    }
  }

  template <int kTerms>
  static void SweepAllRows(const Term* a, std::int64_t a_row, std::int64_t rows,
                           const Element* b, std::int64_t b_row, std::int64_t numbers,
                           std::int64_t columns, float* c, std::int64_t c_row) {
    constexpr int kRows = Simd::kSweptRows;
    std::int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) {
      SweepRows<kRows, kTerms>(a + i * a_row, a_row, b, b_row, numbers, columns,
                               c + i * c_row, c_row);
    }
    for (; i < rows; ++i) {
      SweepRows<1, kTerms>(a + i * a_row, a_row, b, b_row, numbers, columns,
                           c + i * c_row, c_row);
    }
  }

  template <int kRows, int kTerms>
  static void SweepRows(const Term* a, std::int64_t a_row, const Element* b,
                        std::int64_t b_row, std::int64_t numbers, std::int64_t columns,
                        float* c, std::int64_t c_row) {
    Vector factors[kRows][kTerms];
    for (int i = 0; i < kRows; ++i) {
      for (int q = 0; q < kTerms; ++q) factors[i][q] = Step::Repeat(a[i * a_row + q]);
    }
    // c is scratch memory with room for a whole vector at its end.
    const auto step = [&](const Vector (&terms)[kTerms], std::int64_t j) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        Float sum = Load<Simd>(c + i * c_row + j);
#pragma GCC unroll 8
        for (int q = 0; q < kTerms; ++q) Step::Accumulate(sum, factors[i][q], terms[q]);
        Store<Simd>(c + i * c_row + j, sum);
      }
    };
    const bool whole_terms = numbers == kTerms * kNumbers;
    std::int64_t j = 0;
    for (; whole_terms && j + kWidth <= columns; j += kWidth) {
      Vector terms[kTerms];
#pragma GCC unroll 8
      for (int q = 0; q < kTerms; ++q) {
        terms[q] = Read::Across(b + q * kNumbers * b_row + j, b_row);
      }
      step(terms, j);
    }
    for (; j < columns; j += kWidth) {
      const std::int64_t count = std::min<std::int64_t>(kWidth, columns - j);
      Vector terms[kTerms];
      for (int q = 0; q < kTerms; ++q) {
        terms[q] = Read::AcrossSome(b + q * kNumbers * b_row + j, b_row, count,
                                    std::min<std::int64_t>(kNumbers, numbers));
      }
      step(terms, j);
    }
  }

  // The columns of B lie in memory one after the other: a dot product for each number
  // of c.
  static void Dots(const Term* a, std::int64_t a_row, std::int64_t rows,
                   const Element* b, std::int64_t b_column, std::int64_t depth,
                   std::int64_t columns, float* c, std::int64_t c_row) {
    constexpr int kColumns = 4;
    std::int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns) {
      DotAllRows<kColumns>(a, a_row, rows, b + j * b_column, b_column, depth, c + j,
                           c_row);
    }
    for (; j < columns; ++j) {
      DotAllRows<1>(a, a_row, rows, b + j * b_column, b_column, depth, c + j, c_row);
    }
  }

  template <int kColumns>
  static void DotAllRows(const Term* a, std::int64_t a_row, std::int64_t rows,
                         const Element* b, std::int64_t b_column, std::int64_t depth,
                         float* c, std::int64_t c_row) {
    constexpr int kMost = Simd::kDotRows, kFew = 2;
    std::int64_t i = 0;
    for (; i + kMost <= rows; i += kMost) {
      Dot<kMost, kColumns>(a + i * a_row, a_row, b, b_column, depth, c + i * c_row,
                           c_row);
    }
    for (; i + kFew <= rows; i += kFew) {
      Dot<kFew, kColumns>(a + i * a_row, a_row, b, b_column, depth, c + i * c_row,
                          c_row);
    }
    if (i < rows) {
      Dot<1, kColumns>(a + i * a_row, a_row, b, b_column, depth, c + i * c_row, c_row);
    }
  }

  template <int kRows, int kColumns>
  static void Dot(const Term* a, std::int64_t a_row, const Element* b,
                  std::int64_t b_column, std::int64_t depth, float* c,
                  std::int64_t c_row) {
    constexpr std::int64_t kVectorNumbers = kWidth * kNumbers;
    Float sums[kRows][kColumns] = {};
    const auto step = [&](const Vector (&columns)[kColumns], std::int64_t p) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        // The rows of A end with zeros: a whole vector can be read.
        const Vector row = Step::Load(a + i * a_row + p / kNumbers);
#pragma GCC unroll 8
        for (int j = 0; j < kColumns; ++j) {
          Step::Accumulate(sums[i][j], row, columns[j]);
        }
      }
    };
    std::int64_t p = 0;
    for (; p + kVectorNumbers <= depth; p += kVectorNumbers) {
      Vector columns[kColumns];
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) columns[j] = Read::Along(b + j * b_column + p);
      step(columns, p);
    }
    if (p < depth) {
      Vector columns[kColumns];
      for (int j = 0; j < kColumns; ++j) {
        columns[j] = Read::AlongSome(b + j * b_column + p, depth - p);
      }
      step(columns, p);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        c[i * c_row + j] += Lanes<Simd>::Sum(sums[i][j]);
      }
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_SKINNY_GEMM_H_
