// The softmax of one row, and its gradient, for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h.
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//   grad_x = round(p * (grad_y - sum(p * grad_y))), where p is y before rounding
//
// Matrices are [rows, size], packed, in 16 bits; x may be FP32, and grad_x is then
//
//   grad_x = y * (grad_y - sum(y * grad_y))
//
//   cmake --build build/custom_ops --target softmax_cpu_test &&
//     build/custom_ops/softmax_cpu_test

#ifndef KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_SIMD_H_

#include <cstdint>
#include <limits>

#include "cpu/norm/row_reduction_simd.h"
#include "cpu/norm/softmax_kernel.h"
#include "cpu/runtime/workspace.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_math.h"

namespace keras_mp {

template <class Simd, class Format>
struct SoftmaxRow {
  using Row = RowReduction<Simd, Format>;
  using Float = typename Simd::Float;
  using Math = VectorMath<Simd>;

  static constexpr std::int64_t kKept = 1 << 16;  // 256 KiB, of a cache of 1 MiB

  // Ignores NaN, which makes its row NaN in any case.
  template <class Element>
  static float Max(const Element* x, std::int64_t size) {
    const float least = -std::numeric_limits<float>::infinity();
    Float most[Row::kVectors];
    for (Float& one : most) one = Broadcast<Simd>(least);
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float value = part.Fill(part.Load(x + i, v), least);
      most[v] = value > most[v] ? value : most[v];
    });
    for (int v = 1; v < Row::kVectors; ++v) {
      most[0] = most[v] > most[0] ? most[v] : most[0];
    }
    return Lanes<Simd>::Max(most[0]);
  }

  // exp(x - max(x)) of a row. The first pass keeps them for the second, because they take
  // longer than all the rest; a row that is too long for the cache, or that there is no
  // memory for, is computed again.
  template <class Element>
  class Exponentials {
   public:
    Exponentials(const Element* x, std::int64_t size)
        : x_(x),
          max_(Broadcast<Simd>(Max(x, size))),
          kept_(size > kKept ? nullptr : Allocate(size)) {}

    template <class Part>
    Float Compute(Part part, int v, std::int64_t i) {
      const Float e = Math::Exp(part.Load(x_ + i, v) - max_);
      if (kept_ != nullptr) part.Store(kept_ + i, v, e);
      return e;
    }

    template <class Part>
    Float Again(Part part, int v, std::int64_t i) const {
      if (kept_ != nullptr) return part.Load(kept_ + i, v);
      return Math::Exp(part.Load(x_ + i, v) - max_);
    }

   private:
    static float* Allocate(std::int64_t size) {
      return static_cast<float*>(ThreadWorkspace(size * sizeof(float)));
    }

    const Element* x_;
    Float max_;
    float* kept_;
  };

  static void Compute(const Softmax& softmax, std::int64_t row) {
    const std::int64_t first = row * softmax.size;
    std::uint16_t* y = Row::At(softmax.y, first);
    if (softmax.is_x_float) {
      Compute(static_cast<const float*>(softmax.x) + first, softmax.size, y);
    } else {
      Compute(Row::At(softmax.x, first), softmax.size, y);
    }
  }

  template <class Element>
  static void Compute(const Element* x, std::int64_t size, std::uint16_t* y) {
    Exponentials<Element> exponentials(x, size);
    const double sum = Row::Sum(size, [&](auto part, int v, std::int64_t i) {
      return exponentials.Compute(part, v, i);
    });
    const Float inverse = Broadcast<Simd>(static_cast<float>(1 / sum));
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      part.Store(y + i, v, exponentials.Again(part, v, i) * inverse);
    });
  }

  static void ComputeGradient(const SoftmaxGradient& gradient, std::int64_t row) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* grad_y = Row::At(gradient.grad_y, row * size);
    std::uint16_t* grad_x = Row::At(gradient.grad_x, row * size);
    Exponentials<std::uint16_t> exponentials(Row::At(gradient.x, row * size), size);
    const auto totals = Row::SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float e = exponentials.Compute(part, v, i);
      return typename Row::Pair{e, e * part.Load(grad_y + i, v)};
    });
    const Float inverse = Broadcast<Simd>(static_cast<float>(1 / totals.first));
    const Float mean = Broadcast<Simd>(static_cast<float>(totals.second / totals.first));
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float p = exponentials.Again(part, v, i) * inverse;
      part.Store(grad_x + i, v, p * (part.Load(grad_y + i, v) - mean));
    });
  }

  static void ComputeFloatGradient(const FloatSoftmaxGradient& gradient,
                                   std::int64_t row) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* y = Row::At(gradient.y, row * size);
    const std::uint16_t* grad_y = Row::At(gradient.grad_y, row * size);
    float* grad_x = gradient.grad_x + row * size;
    const double sum = Row::Sum(size, [&](auto part, int v, std::int64_t i) {
      return part.Load(y + i, v) * part.Load(grad_y + i, v);
    });
    const Float mean = Broadcast<Simd>(static_cast<float>(sum));
    Row::ForEach(size, [&](auto part, int v, std::int64_t i) {
      part.Store(grad_x + i, v,
                 part.Load(y + i, v) * (part.Load(grad_y + i, v) - mean));
    });
  }
};

// Selects the function for the format of a matrix.
template <class Simd>
struct SoftmaxOf {
  using HalfRow = SoftmaxRow<Simd, Half<Simd>>;
  using Bfloat16Row = SoftmaxRow<Simd, Bfloat16<Simd>>;

  static void Compute(const Softmax& softmax, std::int64_t row) {
    softmax.type == DataType::kHalf ? HalfRow::Compute(softmax, row)
                                    : Bfloat16Row::Compute(softmax, row);
  }
  static void ComputeGradient(const SoftmaxGradient& gradient, std::int64_t row) {
    gradient.type == DataType::kHalf ? HalfRow::ComputeGradient(gradient, row)
                                     : Bfloat16Row::ComputeGradient(gradient, row);
  }
  static void ComputeFloatGradient(const FloatSoftmaxGradient& gradient,
                                   std::int64_t row) {
    gradient.type == DataType::kHalf ? HalfRow::ComputeFloatGradient(gradient, row)
                                     : Bfloat16Row::ComputeFloatGradient(gradient, row);
  }
};

template <class Simd>
constexpr SoftmaxKernel kSoftmaxKernel = {SoftmaxOf<Simd>::Compute,
                                          SoftmaxOf<Simd>::ComputeGradient,
                                          SoftmaxOf<Simd>::ComputeFloatGradient};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_SOFTMAX_KERNEL_SIMD_H_
