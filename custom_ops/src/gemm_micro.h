// The innermost product: a few rows of A times a panel of B, with C in registers.

#ifndef KERAS_MP_SRC_GEMM_MICRO_H_
#define KERAS_MP_SRC_GEMM_MICRO_H_

#include <cstdint>

#include "simd.h"

namespace keras_mp {

// c[i * c_row + j] (+)= sum over p of a[i * kStride + p] * b[p * kColumns + j], for
// i < kRows, j < kColumns = kVectors * kWidth and p < depth. The sum runs over p in
// order, whatever the tile, so that its bits depend on no block size but that of p.
template <class Simd, int kRows, int kVectors, std::int64_t kStride>
void Micro(const float* a, const float* b, std::int64_t depth, bool accumulate,
           float* c, std::int64_t c_row) {
  using Float = typename Simd::Float;
  constexpr int kWidth = Simd::kWidth;
  Float sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = accumulate ? Load<Simd>(c + i * c_row + j * kWidth) : Float{};
    }
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    Float columns[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      columns[j] = Load<Simd>(b + (p * kVectors + j) * kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Float row = Set<Simd>(a[i * kStride + p]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += row * columns[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Store<Simd>(c + i * c_row + j * kWidth, sum[i][j]);
    }
  }
}

// All rows of a block, in tiles of nearly equal height.
template <class Simd, int kVectors, std::int64_t kStride>
struct MicroRows {
  using Function = void (*)(const float*, const float*, std::int64_t, bool, float*,
                            std::int64_t);

  template <int... kRows>
  struct Table {
    static constexpr Function kFunctions[] = {Micro<Simd, kRows, kVectors, kStride>...};
  };

  template <int kRows, int... kMore>
  struct MakeTable : MakeTable<kRows - 1, kRows, kMore...> {};
  template <int... kMore>
  struct MakeTable<0, kMore...> : Table<kMore...> {};

  static void Run(const float* a, std::int64_t rows, const float* b, std::int64_t depth,
                  bool accumulate, float* c, std::int64_t c_row) {
    std::int64_t tiles = (rows + Simd::kRows - 1) / Simd::kRows;
    for (std::int64_t i = 0; i < rows; --tiles) {
      const std::int64_t height = (rows - i + tiles - 1) / tiles;
      MakeTable<Simd::kRows>::kFunctions[height - 1](a + i * kStride, b, depth,
                                                     accumulate, c + i * c_row, c_row);
      i += height;
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_GEMM_MICRO_H_
