// Products of few rows, down to a vector times a matrix: nothing is packed, and the
// 16-bit matrix is read once, in the order in which it lies in memory.

#ifndef KERAS_MP_SRC_GEMM_FEW_ROWS_H_
#define KERAS_MP_SRC_GEMM_FEW_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "gemm_tile.h"
#include "simd.h"

namespace keras_mp {

// c[i * c_row + j] += sum over q < kDepth of a[i * a_row + q] * b[q * b_row + j], for
// i < kRows and j < columns: B is swept along its rows while c stays in the L1 cache.
template <class Simd, class Format, int kRows, int kDepth>
static inline void SweepRows(const float* a, std::int64_t a_row, const std::uint16_t* b,
                             std::int64_t b_row, std::int64_t columns, float* c,
                             std::int64_t c_row) {
  using Float = typename Simd::Float;
  Float factors[kRows][kDepth];
  for (int i = 0; i < kRows; ++i) {
    for (int q = 0; q < kDepth; ++q) factors[i][q] = Set<Simd>(a[i * a_row + q]);
  }
  const auto step = [&](const Float (&rows)[kDepth], std::int64_t j, auto load,
                        auto store) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      Float sum = load(c + i * c_row + j);
#pragma GCC unroll 8
      for (int q = 0; q < kDepth; ++q) sum += factors[i][q] * rows[q];
      store(c + i * c_row + j, sum);
    }
  };
  std::int64_t j = 0;
  for (; j + Simd::kWidth <= columns; j += Simd::kWidth) {
    Float rows[kDepth];
#pragma GCC unroll 8
    for (int q = 0; q < kDepth; ++q) rows[q] = Format::Load(b + q * b_row + j);
    step(rows, j, Load<Simd>, Store<Simd>);
  }
  if (j < columns) {
    const std::int64_t rest = columns - j;
    Float rows[kDepth];
    for (int q = 0; q < kDepth; ++q) {
      rows[q] = LoadSome<Simd, Format>(b + q * b_row + j, rest);
    }
    // c is scratch memory with room for a whole vector.
    step(rows, j, Load<Simd>, Store<Simd>);
  }
}

template <class Simd, class Format, int kDepth>
static inline void SweepAllRows(const float* a, std::int64_t a_row, std::int64_t rows,
                                const std::uint16_t* b, std::int64_t b_row,
                                std::int64_t columns, float* c, std::int64_t c_row) {
  std::int64_t i = 0;
  for (; i + 2 <= rows; i += 2) {
    SweepRows<Simd, Format, 2, kDepth>(a + i * a_row, a_row, b, b_row, columns,
                                       c + i * c_row, c_row);
  }
  if (i < rows) {
    SweepRows<Simd, Format, 1, kDepth>(a + i * a_row, a_row, b, b_row, columns,
                                       c + i * c_row, c_row);
  }
}

// c += A B, where the rows of B lie in memory one after the other.
template <class Simd, class Format>
void Sweep(const float* a, std::int64_t a_row, std::int64_t rows, View b,
           std::int64_t depth, std::int64_t columns, float* c, std::int64_t c_row) {
  constexpr int kDepth = 4;
  std::int64_t p = 0;
  for (; p + kDepth <= depth; p += kDepth) {
    SweepAllRows<Simd, Format, kDepth>(a + p, a_row, rows, b.data + p * b.row, b.row,
                                       columns, c, c_row);
  }
  for (; p < depth; ++p) {
    SweepAllRows<Simd, Format, 1>(a + p, a_row, rows, b.data + p * b.row, b.row, columns,
                                  c, c_row);
  }
}

// c[i * c_row + j] += the dot product of row i of A and column j of B, for i < kRows and
// j < kColumns, where a column of B lies in memory in one piece.
template <class Simd, class Format, int kRows, int kColumns>
static inline void Dot(const float* a, std::int64_t a_row, const std::uint16_t* b,
                       std::int64_t b_column, std::int64_t depth, float* c,
                       std::int64_t c_row) {
  using Float = typename Simd::Float;
  Float sums[kRows][kColumns] = {};
  const auto step = [&](const Float (&columns)[kColumns], std::int64_t p, auto load) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Float row = load(a + i * a_row + p);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) sums[i][j] += row * columns[j];
    }
  };
  std::int64_t p = 0;
  for (; p + Simd::kWidth <= depth; p += Simd::kWidth) {
    Float columns[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) columns[j] = Format::Load(b + j * b_column + p);
    step(columns, p, Load<Simd>);
  }
  if (p < depth) {
    const std::int64_t rest = depth - p;
    Float columns[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      columns[j] = LoadSome<Simd, Format>(b + j * b_column + p, rest);
    }
    step(columns, p,
         [rest](const float* x) { return LoadSome<Simd, Single<Simd>>(x, rest); });
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      float total = 0;
      for (int lane = 0; lane < Simd::kWidth; ++lane) total += sums[i][j][lane];
      c[i * c_row + j] += total;
    }
  }
}

template <class Simd, class Format, int kColumns>
static inline void DotAllRows(const float* a, std::int64_t a_row, std::int64_t rows,
                              const std::uint16_t* b, std::int64_t b_column,
                              std::int64_t depth, float* c, std::int64_t c_row) {
  std::int64_t i = 0;
  for (; i + 2 <= rows; i += 2) {
    Dot<Simd, Format, 2, kColumns>(a + i * a_row, a_row, b, b_column, depth,
                                   c + i * c_row, c_row);
  }
  if (i < rows) {
    Dot<Simd, Format, 1, kColumns>(a + i * a_row, a_row, b, b_column, depth,
                                   c + i * c_row, c_row);
  }
}

// c += A B, where the columns of B lie in memory one after the other.
template <class Simd, class Format>
void Dots(const float* a, std::int64_t a_row, std::int64_t rows, View b,
          std::int64_t depth, std::int64_t columns, float* c, std::int64_t c_row) {
  constexpr int kColumns = 4;
  std::int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    DotAllRows<Simd, Format, kColumns>(a, a_row, rows, b.data + j * b.column, b.column,
                                       depth, c + j, c_row);
  }
  for (; j < columns; ++j) {
    DotAllRows<Simd, Format, 1>(a, a_row, rows, b.data + j * b.column, b.column, depth,
                                c + j, c_row);
  }
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_GEMM_FEW_ROWS_H_
