// The softmax and the normalization of one row, and their gradients, for one instruction
// set: a template, as cpu/gemm/gemm_kernel_simd.h.
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//   y = round(gamma * (x - mean) * inverse + beta)
//
// Matrices are [rows, size], packed, in 16 bits; gamma and beta [size] in FP32.
//
//   cmake --build build/cpp-plain --target row_norm_cpu_test softmax_cpu_test &&
//     ctest --test-dir build/cpp-plain -R "row_norm|softmax"

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/norm/row_norm_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"
#include "cpu/simd/vector_math.h"

namespace keras_mp {

template <class Simd, class Format>
struct Row {
  using Float = typename Simd::Float;
  using Math = VectorMath<Simd>;
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
    const Float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0;
    for (int i = 0; i < Simd::kWidth; ++i) total += sum[i];
    return total;
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

  // Ignores NaN, which makes its row NaN in any case.
  static float Max(const std::uint16_t* x, std::int64_t size) {
    const float least = -std::numeric_limits<float>::infinity();
    Float most[kVectors];
    for (Float& one : most) one = Broadcast<Simd>(least);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float value = part.Fill(part.Load(x + i, v), least);
      most[v] = value > most[v] ? value : most[v];
    });
    float found = least;
    for (const Float& one : most) {
      for (int i = 0; i < Simd::kWidth; ++i) found = std::max(found, one[i]);
    }
    return found;
  }

  static const std::uint16_t* At(const void* matrix, std::int64_t index) {
    return static_cast<const std::uint16_t*>(matrix) + index;
  }
  static std::uint16_t* At(void* matrix, std::int64_t index) {
    return static_cast<std::uint16_t*>(matrix) + index;
  }

  // exp(x - max(x)) of a row. A short row is kept from the first pass for the second,
  // because the exponentials take longer than all the rest.
  class Exponentials {
   public:
    Exponentials(const std::uint16_t* x, std::int64_t size)
        : x_(x), max_(Broadcast<Simd>(Max(x, size))), is_kept_(size <= kChunk) {}

    template <class Part>
    Float Compute(Part part, int v, std::int64_t i) {
      const Float e = Math::Exp(part.Load(x_ + i, v) - max_);
      if (is_kept_) part.Store(kept_ + i, v, e);
      return e;
    }

    template <class Part>
    Float Again(Part part, int v, std::int64_t i) const {
      if (is_kept_) return part.Load(kept_ + i, v);
      return Math::Exp(part.Load(x_ + i, v) - max_);
    }

   private:
    const std::uint16_t* x_;
    Float max_;
    bool is_kept_;
    float kept_[kChunk];
  };

  static void SoftmaxRow(const keras_mp::Softmax& softmax, std::int64_t row) {
    const std::int64_t size = softmax.size;
    std::uint16_t* y = At(softmax.y, row * size);
    Exponentials exponentials(At(softmax.x, row * size), size);
    const double sum = Sum(size, [&](auto part, int v, std::int64_t i) {
      return exponentials.Compute(part, v, i);
    });
    const Float inverse = Broadcast<Simd>(static_cast<float>(1 / sum));
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      part.Store(y + i, v, exponentials.Again(part, v, i) * inverse);
    });
  }

  static void SoftmaxGradientRow(const SoftmaxGradient& gradient, std::int64_t row) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* grad_y = At(gradient.grad_y, row * size);
    std::uint16_t* grad_x = At(gradient.grad_x, row * size);
    Exponentials exponentials(At(gradient.x, row * size), size);
    const Totals totals = SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float e = exponentials.Compute(part, v, i);
      return Pair{e, e * part.Load(grad_y + i, v)};
    });
    const Float inverse = Broadcast<Simd>(static_cast<float>(1 / totals.first));
    const Float mean = Broadcast<Simd>(static_cast<float>(totals.second / totals.first));
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float p = exponentials.Again(part, v, i) * inverse;
      part.Store(grad_x + i, v, p * (part.Load(grad_y + i, v) - mean));
    });
  }

  // The statistics of a row: z = (x - mean) * inverse.
  struct Scale {
    float mean, inverse;
    double count;  // divisor of the sum of squares: size, or 1 for unit length
    bool is_zero;  // unit length: a row of zeros
    bool is_short;  // unit length: a row divided by epsilon, not by its length
  };

  static Scale ScaleOf(const std::uint16_t* x, std::int64_t size, RowNormKind kind,
                       float epsilon) {
    Scale scale = {0, 0, 1.0 * size, false, false};
    if (kind == RowNormKind::kLayer) {
      const double sum = Sum(size, [&](auto part, int v, std::int64_t i) {
        return part.Load(x + i, v);
      });
      scale.mean = static_cast<float>(sum / scale.count);
    }
    const Float mean = Broadcast<Simd>(scale.mean);
    const double squares = Sum(size, [&](auto part, int v, std::int64_t i) {
      const Float distance = part.Load(x + i, v) - mean;
      return distance * distance;
    });
    double deviation = std::sqrt(squares / scale.count + epsilon);
    if (kind == RowNormKind::kUnitLength) {
      scale.count = 1;
      scale.is_zero = squares == 0;
      deviation = std::sqrt(squares);
      scale.is_short = deviation < epsilon;
      if (scale.is_short) deviation = epsilon;
    }
    scale.inverse = static_cast<float>(1 / deviation);
    return scale;
  }

  static void NormRow(const RowNorm& norm, std::int64_t row) {
    const std::int64_t size = norm.size;
    const std::uint16_t* x = At(norm.x, row * size);
    std::uint16_t* y = At(norm.y, row * size);
    const Scale scale = ScaleOf(x, size, norm.kind, norm.epsilon);
    const Float mean = Broadcast<Simd>(scale.mean);
    const Float inverse = Broadcast<Simd>(scale.inverse);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      Float z = (part.Load(x + i, v) - mean) * inverse;
      if (norm.gamma) z *= part.Load(norm.gamma + i, v);
      if (norm.beta) z += part.Load(norm.beta + i, v);
      part.Store(y + i, v, z);
    });
  }

  static void NormGradientRow(const RowNormGradient& gradient, std::int64_t row,
                              float* grad_gamma, float* grad_beta) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* x = At(gradient.x, row * size);
    const std::uint16_t* grad_y = At(gradient.grad_y, row * size);
    std::uint16_t* grad_x = At(gradient.grad_x, row * size);
    const Scale scale = ScaleOf(x, size, gradient.kind, gradient.epsilon);
    const Float mean = Broadcast<Simd>(scale.mean);
    const Float inverse = Broadcast<Simd>(scale.inverse);
    const auto z_at = [&](auto part, int v, std::int64_t i) {
      return (part.Load(x + i, v) - mean) * inverse;
    };
    const auto grad_z_at = [&](auto part, int v, std::int64_t i) {
      const Float d = part.Load(grad_y + i, v);
      return gradient.gamma ? d * part.Load(gradient.gamma + i, v) : d;
    };
    const Totals totals = SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float grad_z = grad_z_at(part, v, i);
      return Pair{grad_z, grad_z * z_at(part, v, i)};
    });
    const bool centered = gradient.kind == RowNormKind::kLayer;
    const double mean_grad_z = centered ? totals.first / scale.count : 0;
    const Float mean_term = Broadcast<Simd>(static_cast<float>(mean_grad_z));
    const double mean_grad_z_z = scale.is_short ? 0 : totals.second / scale.count;
    const Float length_term = Broadcast<Simd>(static_cast<float>(mean_grad_z_z));
    const Float factor = Broadcast<Simd>(scale.is_zero ? 0 : scale.inverse);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float z = z_at(part, v, i);
      const Float grad = grad_z_at(part, v, i) - mean_term - z * length_term;
      part.Store(grad_x + i, v, grad * factor);
      const Float d = part.Load(grad_y + i, v);
      if (grad_gamma) part.Store(grad_gamma + i, v, part.Load(grad_gamma + i, v) + d * z);
      if (grad_beta) part.Store(grad_beta + i, v, part.Load(grad_beta + i, v) + d);
    });
  }
};

// Selects the function for the format of a matrix.
template <class Simd>
struct RowOf {
  template <class Function>
  static void With(DataType type, const Function& function) {
    type == DataType::kHalf ? function(Row<Simd, Half<Simd>>{})
                            : function(Row<Simd, Bfloat16<Simd>>{});
  }

  static void SoftmaxRow(const keras_mp::Softmax& softmax, std::int64_t row) {
    With(softmax.type, [&](auto kernel) { kernel.SoftmaxRow(softmax, row); });
  }
  static void SoftmaxGradientRow(const SoftmaxGradient& gradient, std::int64_t row) {
    With(gradient.type, [&](auto kernel) { kernel.SoftmaxGradientRow(gradient, row); });
  }
  static void NormRow(const RowNorm& norm, std::int64_t row) {
    With(norm.type, [&](auto kernel) { kernel.NormRow(norm, row); });
  }
  static void NormGradientRow(const RowNormGradient& gradient, std::int64_t row,
                              float* grad_gamma, float* grad_beta) {
    With(gradient.type, [&](auto kernel) {
      kernel.NormGradientRow(gradient, row, grad_gamma, grad_beta);
    });
  }
};

template <class Simd>
constexpr RowKernel kRowKernel = {
    RowOf<Simd>::SoftmaxRow,
    RowOf<Simd>::SoftmaxGradientRow,
    RowOf<Simd>::NormRow,
    RowOf<Simd>::NormGradientRow,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_
