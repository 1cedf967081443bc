// GEMM with few rows, down to GEMV: B is not packed but streamed once, in the order in
// which it lies in memory.
//
//   C[i, j] += sum over k of A[i, k] * B[k, j]
//
// A is packed in rows (cpu/gemm/packing.h). B is row-major (Sweep: adds multiples of its
// rows to C) or column-major (Dots: one dot product for each element of C). C is FP32,
// row-major.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_SKINNY_GEMM_H_
#define KERAS_MP_SRC_CPU_GEMM_SKINNY_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "cpu/gemm/gemm_kernel.h"
#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd, class Step, class Source>
class SkinnyGemm {
 public:
  using Packed = typename Step::Packed;

  // c[i * c_row + j] += sum over `depth` elements along k of A(i, .) * B(., j), for
  // i < rows and j < columns. The rows of packed A are a_row apart and end with zeros.
  static void Multiply(const Packed* a, std::int64_t a_row, std::int64_t rows,
                       const MatrixView& b, std::int64_t depth, std::int64_t columns,
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
  static constexpr int kWidth = Simd::kWidth, kElements = Step::kElements;

  // Row-major B: adds a few of its rows at a time to c, which stays in the L1 cache.
  static void Sweep(const Packed* a, std::int64_t a_row, std::int64_t rows,
                    const Element* b, std::int64_t b_row, std::int64_t depth,
                    std::int64_t columns, float* c, std::int64_t c_row) {
    constexpr int kSteps = 4;
    std::int64_t p = 0;
    for (; p + kSteps * kElements <= depth; p += kSteps * kElements) {
      SweepAllRows<kSteps>(a + p / kElements, a_row, rows, b + p * b_row, b_row,
                           kSteps * kElements, columns, c, c_row);
    }
    for (; p < depth; p += kElements) {
      const std::int64_t rest = std::min<std::int64_t>(kElements, depth - p);
      SweepAllRows<1>(a + p / kElements, a_row, rows, b + p * b_row, b_row, rest,
                      columns, c, c_row);
    }
  }

  template <int kSteps>
  static void SweepAllRows(const Packed* a, std::int64_t a_row, std::int64_t rows,
                           const Element* b, std::int64_t b_row, std::int64_t depth,
                           std::int64_t columns, float* c, std::int64_t c_row) {
    constexpr int kRows = Simd::kSweptRows;
    std::int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) {
      SweepRows<kRows, kSteps>(a + i * a_row, a_row, b, b_row, depth, columns,
                               c + i * c_row, c_row);
    }
    for (; i < rows; ++i) {
      SweepRows<1, kSteps>(a + i * a_row, a_row, b, b_row, depth, columns,
                           c + i * c_row, c_row);
    }
  }

  template <int kRows, int kSteps>
  static void SweepRows(const Packed* a, std::int64_t a_row, const Element* b,
                        std::int64_t b_row, std::int64_t depth, std::int64_t columns,
                        float* c, std::int64_t c_row) {
    Vector factors[kRows][kSteps];
    for (int i = 0; i < kRows; ++i) {
      for (int q = 0; q < kSteps; ++q) factors[i][q] = Step::Broadcast(a[i * a_row + q]);
    }
    // c is scratch memory with room for a whole vector at its end.
    const auto step = [&](const Vector (&row)[kSteps], std::int64_t j) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        Float sum = Load<Simd>(c + i * c_row + j);
#pragma GCC unroll 8
        for (int q = 0; q < kSteps; ++q) Step::Accumulate(sum, factors[i][q], row[q]);
        Store<Simd>(c + i * c_row + j, sum);
      }
    };
    const bool whole_steps = depth == kSteps * kElements;
    std::int64_t j = 0;
    for (; whole_steps && j + kWidth <= columns; j += kWidth) {
      Vector row[kSteps];
#pragma GCC unroll 8
      for (int q = 0; q < kSteps; ++q) {
        row[q] = Read::Across(b + q * kElements * b_row + j, b_row);
      }
      step(row, j);
    }
    for (; j < columns; j += kWidth) {
      const std::int64_t count = std::min<std::int64_t>(kWidth, columns - j);
      Vector row[kSteps];
      for (int q = 0; q < kSteps; ++q) {
        row[q] = Read::AcrossSome(b + q * kElements * b_row + j, b_row, count,
                                  std::min<std::int64_t>(kElements, depth));
      }
      step(row, j);
    }
  }

  // Column-major B: one dot product for each element of c.
  static void Dots(const Packed* a, std::int64_t a_row, std::int64_t rows,
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
  static void DotAllRows(const Packed* a, std::int64_t a_row, std::int64_t rows,
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
  static void Dot(const Packed* a, std::int64_t a_row, const Element* b,
                  std::int64_t b_column, std::int64_t depth, float* c,
                  std::int64_t c_row) {
    constexpr std::int64_t kVectorElements = kWidth * kElements;
    Float sums[kRows][kColumns] = {};
    const auto step = [&](const Vector (&columns)[kColumns], std::int64_t p) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        // The rows of A end with zeros: a whole vector can be read.
        const Vector row = Step::Load(a + i * a_row + p / kElements);
#pragma GCC unroll 8
        for (int j = 0; j < kColumns; ++j) {
          Step::Accumulate(sums[i][j], row, columns[j]);
        }
      }
    };
    std::int64_t p = 0;
    for (; p + kVectorElements <= depth; p += kVectorElements) {
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
