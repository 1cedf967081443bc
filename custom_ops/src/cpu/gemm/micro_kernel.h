// The innermost product: a few rows of A times a panel of B, with C in registers.

#ifndef KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_
#define KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_

#include <cstdint>

#include "cpu/gemm/multiply_accumulate.h"
#include "common/ceil_div.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// c[i * c_row + j] (+)= sum over p of a[i * kStride + p] * b[p * kColumns + j], for
// i < kRows, j < kColumns = kVectors * kWidth and p < terms. The sum runs over p in
// order, whatever the tile, so that its bits depend on no block size but that of p.
template <class Simd, class Step, int kRows, int kVectors, std::int64_t kStride>
void Micro(const typename Step::Term* a, const typename Step::Term* b,
           std::int64_t terms, bool accumulate, float* c, std::int64_t c_row) {
  using Float = typename Simd::Float;
  constexpr int kWidth = Simd::kWidth;
  Float sum[kRows][kVectors];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = accumulate ? Load<Simd>(c + i * c_row + j * kWidth) : Float{};
    }
  }
  for (std::int64_t p = 0; p < terms; ++p) {
    typename Step::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      columns[j] = Step::Load(b + (p * kVectors + j) * kWidth);
    }
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Vector row = Step::Repeat(a[i * kStride + p]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) Step::Accumulate(sum[i][j], row, columns[j]);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Store<Simd>(c + i * c_row + j * kWidth, sum[i][j]);
    }
  }
}

// All rows of a block, in tiles of up to kRows rows and of nearly equal height.
template <class Simd, class Step, int kRows, int kVectors, std::int64_t kStride>
struct MicroRows {
  using Term = typename Step::Term;
  using Function = void (*)(const Term*, const Term*, std::int64_t, bool, float*,
                            std::int64_t);

  template <int... kHeights>
  struct Table {
    static constexpr Function kFunctions[] = {
        Micro<Simd, Step, kHeights, kVectors, kStride>...};
  };

  template <int kHeight, int... kMore>
  struct MakeTable : MakeTable<kHeight - 1, kHeight, kMore...> {};
  template <int... kMore>
  struct MakeTable<0, kMore...> : Table<kMore...> {};

  static void Run(const Term* a, std::int64_t rows, const Term* b, std::int64_t terms,
                  bool accumulate, float* c, std::int64_t c_row) {
    std::int64_t tiles = CeilDiv(rows, kRows);
    for (std::int64_t i = 0; i < rows; --tiles) {
      const std::int64_t height = CeilDiv(rows - i, tiles);
      MakeTable<kRows>::kFunctions[height - 1](a + i * kStride, b, terms, accumulate,
                                               c + i * c_row, c_row);
      i += height;
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_
