// Reductions over one row of a matrix, for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h.
//
//   sum over i < size of term(i)
//
// The row is contiguous; Format is that of its 16-bit matrices. kChunk elements are summed
// in FP32, and the sums of the chunks in double.
//
//   cmake --build build/custom_ops --target row_norm_cpu_test softmax_cpu_test &&
//     ctest --test-dir build/custom_ops -R "row_norm|softmax"

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_REDUCTION_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_REDUCTION_SIMD_H_

#include <algorithm>
#include <cstdint>

#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
struct RowReduction {
  using Float = typename Simd::Float;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kChunk = 1024;

  // Calls body(vectors, v, i) for each vector of [0, size): the v-th of `vectors`, whose
  // first element is i.
  template <class Body>
  static void ForEach(std::int64_t size, const Body& body) {
    ForVectors<Simd, Format, kVectors>(size, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) body(part, v, i);
    });
  }

  static float Total(const Float (&sums)[kVectors]) {
    return Lanes<Simd>::Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  // The sum of term(vectors, v, i) over a row.
  template <class Term>
  static double Sum(std::int64_t size, const Term& term) {
    double total = 0;
    for (std::int64_t first = 0; first < size; first += kChunk) {
      Float sums[kVectors] = {};
      ForEach(std::min(kChunk, size - first), [&](auto part, int v, std::int64_t i) {
        sums[v] += part.Fill(term(part, v, first + i), 0);
      });
      total += Total(sums);
    }
    return total;
  }

  struct Pair {
    Float first, second;
  };
  struct Totals {
    double first = 0, second = 0;
  };

  // The sums of both members of term(vectors, v, i) over a row.
  template <class Term>
  static Totals SumPairs(std::int64_t size, const Term& term) {
    Totals totals;
    for (std::int64_t first = 0; first < size; first += kChunk) {
      Float sums[kVectors] = {}, others[kVectors] = {};
      ForEach(std::min(kChunk, size - first), [&](auto part, int v, std::int64_t i) {
        const Pair pair = term(part, v, first + i);
        sums[v] += part.Fill(pair.first, 0);
        others[v] += part.Fill(pair.second, 0);
      });
      totals.first += Total(sums);
      totals.second += Total(others);
    }
    return totals;
  }

  static const std::uint16_t* At(const void* matrix, std::int64_t index) {
    return static_cast<const std::uint16_t*>(matrix) + index;
  }
  static std::uint16_t* At(void* matrix, std::int64_t index) {
    return static_cast<std::uint16_t*>(matrix) + index;
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_ROW_REDUCTION_SIMD_H_
