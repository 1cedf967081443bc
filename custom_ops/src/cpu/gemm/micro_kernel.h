// The GEMM micro-kernel: a few rows of A times a panel of B, with the tile of C in
// registers.
//
//   C[i, j] (+)= sum over k of A[i, k] * B[k, j]
//
// A and B are packed as in cpu/gemm/packing.h: A [rows, kStride] row-major, B
// [steps, kVectors * kWidth] row-major. C is FP32, row-major. FP16 elements were widened
// to FP32 when they were packed.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_
#define KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_

#include <cstdint>

#include "common/ceil_div.h"
#include "cpu/gemm/multiply_accumulate.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// c[i * c_row + j] (+)= sum over p of a[i * kStride + p] * b[p * kColumns + j], for
// i < kRows, j < kColumns = kVectors * kWidth and p < steps; += where `accumulate`. The
// sum runs over p in order, whatever the tile, so that its bits depend on the blocking
// along k alone.
template <class Simd, class Step, int kRows, int kVectors, std::int64_t kStride>
void MicroKernel(const typename Step::Packed* a, const typename Step::Packed* b,
                 std::int64_t steps, bool accumulate, float* c, std::int64_t c_row) {
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
  for (std::int64_t p = 0; p < steps; ++p) {
    typename Step::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      columns[j] = Step::Load(b + (p * kVectors + j) * kWidth);
    }
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Vector row = Step::Broadcast(a[i * kStride + p]);
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

// Calls the micro-kernel for all rows of a block, in tiles of nearly equal height, up to
// kRows.
template <class Simd, class Step, int kRows, int kVectors, std::int64_t kStride>
struct MicroKernelRows {
  using Packed = typename Step::Packed;
  using Function = void (*)(const Packed*, const Packed*, std::int64_t, bool, float*,
                            std::int64_t);

  template <int... kHeights>
  struct ByHeight {
    static constexpr Function kFunctions[] = {
        MicroKernel<Simd, Step, kHeights, kVectors, kStride>...};
  };

  template <int kHeight, int... kMore>
  struct MakeByHeight : MakeByHeight<kHeight - 1, kHeight, kMore...> {};
  template <int... kMore>
  struct MakeByHeight<0, kMore...> : ByHeight<kMore...> {};

  static void Run(const Packed* a, std::int64_t rows, const Packed* b, std::int64_t steps,
                  bool accumulate, float* c, std::int64_t c_row) {
    std::int64_t tiles = CeilDiv(rows, kRows);
    for (std::int64_t i = 0; i < rows; --tiles) {
      const std::int64_t height = CeilDiv(rows - i, tiles);
      MakeByHeight<kRows>::kFunctions[height - 1](a + i * kStride, b, steps, accumulate,
                                                  c + i * c_row, c_row);
      i += height;
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_MICRO_KERNEL_H_
