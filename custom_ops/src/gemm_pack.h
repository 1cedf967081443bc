// Copies a block of a 16-bit matrix into FP32, in the order in which the product reads
// it. `Format` is Half or Bfloat16 of simd.h.

#ifndef KERAS_MP_SRC_GEMM_PACK_H_
#define KERAS_MP_SRC_GEMM_PACK_H_

#include <algorithm>
#include <cstdint>

#include "gemm_tile.h"
#include "simd.h"

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

// GCC has the builtin of Clang since version 12.
#if defined(__clang__) || __GNUC__ >= 12
#define KERAS_MP_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KERAS_MP_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Row{__VA_ARGS__})
#endif

// Transposes an 8 x 8 block of 16-bit numbers.
static inline void Transpose8x8(const std::uint16_t* from, std::int64_t from_row,
                                std::uint16_t* to, std::int64_t to_row) {
  typedef std::uint16_t Row __attribute__((vector_size(16)));
  Row a[8], b[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&a[i], from + i * from_row, sizeof a[i]);
  // Three rounds of interleaving row i with row i + 4.
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = KERAS_MP_SHUFFLE(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = KERAS_MP_SHUFFLE(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * to_row, &a[i], sizeof a[i]);
}

// to[j * to_row + i] = from[i * from_row + j] for i < rows, j < columns
static inline void Transpose(const std::uint16_t* from, std::int64_t from_row,
                             std::int64_t rows, std::int64_t columns,
                             std::uint16_t* to, std::int64_t to_row) {
  for (std::int64_t i = 0; i < rows; i += 8) {
    for (std::int64_t j = 0; j < columns; j += 8) {
      if (i + 8 <= rows && j + 8 <= columns) {
        Transpose8x8(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
        continue;
      }
      for (std::int64_t p = i; p < std::min(i + 8, rows); ++p) {
        for (std::int64_t q = j; q < std::min(j + 8, columns); ++q) {
          to[q * to_row + p] = from[p * from_row + q];
        }
      }
    }
  }
}

// Rows that are far apart, each read for a few cache lines only, are nothing the machine
// foresees: the packing asks for those that come next.

// Rows of A: to[i * kStride + p] = A(i, p) for i < rows, p < depth <= kStride.
template <class Simd, class Format, std::int64_t kStride>
void PackRows(View a, std::int64_t rows, std::int64_t depth, float* to) {
  if (a.column == 1) {
    for (std::int64_t i = 0; i < rows; ++i) {
      Convert<Simd, Format>(a.data + i * a.row, depth, to + i * kStride);
    }
    return;
  }
  constexpr std::int64_t kBlock = 32, kStep = 8, kAhead = 2 * kStep;
  std::uint16_t block[kBlock * kStride];
  for (std::int64_t i = 0; i < rows; i += kBlock) {
    const std::int64_t count = std::min(kBlock, rows - i);
    for (std::int64_t p = 0; p < depth; p += kStep) {
      for (std::int64_t q = p + kAhead; q < std::min(p + kAhead + kStep, depth); ++q) {
        __builtin_prefetch(a.data + q * a.column + i);
        __builtin_prefetch(a.data + q * a.column + i + count - 1);
      }
      Transpose(a.data + p * a.column + i, a.column, std::min(kStep, depth - p), count,
                block + p, kStride);
    }
    for (std::int64_t j = 0; j < count; ++j) {
      Convert<Simd, Format>(block + j * kStride, depth, to + (i + j) * kStride);
    }
  }
}

// Panels of B, each kColumns wide: to[panel][p][j] = B(p, panel * kColumns + j), with
// zeros beyond the last column. Panels follow each other at depth * kColumns.
template <class Simd, class Format, int kColumns>
void PackPanels(View b, std::int64_t depth, std::int64_t columns, float* to) {
  // Few rows at a time, for all panels: rows whose distance is a power of two share a
  // set of the cache, which does not hold many.
  constexpr std::int64_t kRows = 4, kAhead = 2 * kRows;
  const std::int64_t whole = columns / kColumns * kColumns;
  if (b.column == 1) {
    for (std::int64_t p = 0; p < depth; p += kRows) {
      for (std::int64_t j = 0; j < whole; j += kColumns) {
        for (std::int64_t q = p; q < std::min(p + kRows, depth); ++q) {
          if (q + kAhead < depth) __builtin_prefetch(b.data + (q + kAhead) * b.row + j);
          Convert<Simd, Format>(b.data + q * b.row + j, kColumns,
                                to + j * depth + q * kColumns);
        }
      }
    }
  }
  // Transposed, or with zeros beside it, through a block of 16-bit numbers.
  constexpr std::int64_t kBlock = 32;
  std::uint16_t block[kBlock * kColumns] = {};
  for (std::int64_t j = b.column == 1 ? whole : 0; j < columns; j += kColumns) {
    const std::int64_t width = std::min<std::int64_t>(kColumns, columns - j);
    if (width < kColumns) std::memset(block, 0, sizeof block);
    for (std::int64_t p = 0; p < depth; p += kBlock) {
      const std::int64_t count = std::min(kBlock, depth - p);
      const View from = b.At(p, j);
      if (b.column == 1) {
        for (std::int64_t q = 0; q < count; ++q) {
          std::memcpy(block + q * kColumns, from.data + q * b.row,
                      width * sizeof *block);
        }
      } else {
        Transpose(from.data, b.column, width, count, block, kColumns);
      }
      Convert<Simd, Format>(block, count * kColumns, to + j * depth + p * kColumns);
    }
  }
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_GEMM_PACK_H_
