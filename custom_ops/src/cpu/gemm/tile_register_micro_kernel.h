// The GEMM micro-kernel on tile registers, which hold squares of 32-bit words: 2 x 2 of
// C, two of A and two of B.
//
//   C[i, j] (+)= sum over k of A[i, k] * B[k, j]
//
// A and B are packed in pairs along k as in cpu/gemm/packing.h: A [rows, kStride]
// row-major, B [steps, kVectors * kWidth] row-major, with zeros up to whole squares. Of an
// element with parts, those of a row of A are kStride apart, and those of a panel of B
// steps * 2 * kWidth. C is FP32, row-major. Whole squares of C are written: up to kWidth -
// 1 rows beyond the last.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_TILE_REGISTER_MICRO_KERNEL_H_
#define KERAS_MP_SRC_CPU_GEMM_TILE_REGISTER_MICRO_KERNEL_H_

#include <cstdint>

#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/multiply_accumulate.h"

namespace keras_mp {

template <class Simd, class Format, int kParts, int kRows, int kVectors,
          std::int64_t kStride>
class MicroKernelRows<Simd, TileRegisterProduct<Simd, Format, kParts>, kRows, kVectors,
                      kStride> {
 public:
  static void Run(const std::uint32_t* a, std::int64_t rows, const std::uint32_t* b,
                  std::int64_t steps, bool accumulate, float* c, std::int64_t c_row) {
    RunUnpacked(a, kWordBytes * kParts * kStride, rows, b, steps, accumulate, c, c_row);
  }

  // For rows of A that are a_row bytes apart, in a matrix that is contiguous along k.
  static void RunUnpacked(const void* a, std::int64_t a_row, std::int64_t rows,
                          const std::uint32_t* b, std::int64_t steps, bool accumulate,
                          float* c, std::int64_t c_row) {
    for (std::int64_t i = 0; i < rows; i += 2 * kWidth) {
      const auto multiply = rows - i > kWidth ? Multiply<2> : Multiply<1>;
      multiply(static_cast<const char*>(a) + i * a_row, a_row, b, steps, accumulate,
               c + i * c_row, kWordBytes * c_row);
    }
  }

 private:
  static_assert(kVectors <= 2);
  using Registers = typename Simd::TileRegisters;
  static constexpr int kWidth = Simd::kWidth;
  static constexpr std::int64_t kWordBytes = 4;
  // The first registers of each matrix, of eight; no two operands may be the same.
  static constexpr int kC = 0, kA = 4, kB = 6;

  // kHeight x kVectors squares of C; strides of rows are in bytes.
  template <int kHeight>
  static void Multiply(const char* a, std::int64_t a_row, const std::uint32_t* b,
                       std::int64_t steps, bool accumulate, float* c,
                       std::int64_t c_row) {
    constexpr bool kTall = kHeight > 1, kWide = kVectors > 1;
    float* const below = c + kWidth * c_row / kWordBytes;
    StartSum<kC>(accumulate, c, c_row);
    if constexpr (kWide) StartSum<kC + 1>(accumulate, c + kWidth, c_row);
    if constexpr (kTall) StartSum<kC + 2>(accumulate, below, c_row);
    if constexpr (kTall && kWide) StartSum<kC + 3>(accumulate, below + kWidth, c_row);
    for (int part = 0; part < kParts * kParts; ++part) {
      const std::int64_t of_a = part / kParts, of_b = part % kParts;
      MultiplyPart<kTall>(a + of_a * kWordBytes * kStride, a_row,
                          b + of_b * steps * 2 * kWidth, steps);
    }
    Registers::template Store<kC>(c, c_row);
    if constexpr (kWide) Registers::template Store<kC + 1>(c + kWidth, c_row);
    if constexpr (kTall) Registers::template Store<kC + 2>(below, c_row);
    if constexpr (kTall && kWide) {
      Registers::template Store<kC + 3>(below + kWidth, c_row);
    }
  }

  template <bool kTall>
  static void MultiplyPart(const char* a, std::int64_t a_row, const std::uint32_t* b,
                           std::int64_t steps) {
    constexpr bool kWide = kVectors > 1;
    constexpr std::int64_t kPanelRow = kWordBytes * kVectors * kWidth;
    for (std::int64_t p = 0; p < steps; p += kWidth) {
      const char* const rows = a + p * kWordBytes;
      const std::uint32_t* const columns = b + p * kVectors * kWidth;
      Registers::template Load<kB>(columns, kPanelRow);
      Registers::template Load<kA>(rows, a_row);
      Registers::template MultiplyAdd<kC, kA, kB>(Format());
      if constexpr (kWide) {
        Registers::template Load<kB + 1>(columns + kWidth, kPanelRow);
        Registers::template MultiplyAdd<kC + 1, kA, kB + 1>(Format());
      }
      if constexpr (kTall) {
        Registers::template Load<kA + 1>(rows + kWidth * a_row, a_row);
        Registers::template MultiplyAdd<kC + 2, kA + 1, kB>(Format());
      }
      if constexpr (kTall && kWide) {
        Registers::template MultiplyAdd<kC + 3, kA + 1, kB + 1>(Format());
      }
    }
  }

  template <int kRegister>
  static void StartSum(bool accumulate, const float* c, std::int64_t c_row) {
    if (accumulate) {
      Registers::template Load<kRegister>(c, c_row);
    } else {
      Registers::template Zero<kRegister>();
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_TILE_REGISTER_MICRO_KERNEL_H_
