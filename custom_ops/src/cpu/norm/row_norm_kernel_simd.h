// The kernels of cpu/norm/row_norm_kernel.h for one instruction set, as a template; see
// cpu/gemm/gemm_kernel_simd.h.

#ifndef KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_NORM_ROW_NORM_KERNEL_SIMD_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/norm/row_norm_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_math.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
struct Row {
  using Float = typename Simd::Float;
  using Math = VectorMath<Simd>;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kChunk = 1024;

  // Calls body(vectors, v, i) for each vector of [0, size): it is the v-th of `vectors`,
  // which begin at i.
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

  // The sums of both numbers of term(vectors, v, i) over a row.
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

  // Looks past NaN, whose row becomes NaN in any case.
  static float Max(const std::uint16_t* x, std::int64_t size) {
    const float least = -std::numeric_limits<float>::infinity();
    Float most[kVectors];
    for (Float& one : most) one = Set<Simd>(least);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float number = part.Fill(part.Load(x + i, v), least);
      most[v] = number > most[v] ? number : most[v];
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

  // The exponentials of a row, less its largest number. Those of a short row are kept:
  // computing them takes longer than all the rest.
  class Exponentials {
   public:
    Exponentials(const std::uint16_t* x, std::int64_t size)
        : x_(x), max_(Set<Simd>(Max(x, size))), is_kept_(size <= kChunk) {}

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
    const Float inverse = Set<Simd>(static_cast<float>(1 / sum));
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      part.Store(y + i, v, exponentials.Again(part, v, i) * inverse);
    });
  }

  static void SoftmaxGradientRow(const SoftmaxGradient& gradient, std::int64_t row) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* of_y = At(gradient.of_y, row * size);
    std::uint16_t* of_x = At(gradient.of_x, row * size);
    Exponentials exponentials(At(gradient.x, row * size), size);
    const Totals totals = SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float e = exponentials.Compute(part, v, i);
      return Pair{e, e * part.Load(of_y + i, v)};
    });
    const Float inverse = Set<Simd>(static_cast<float>(1 / totals.first));
    const Float mean = Set<Simd>(static_cast<float>(totals.second / totals.first));
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float p = exponentials.Again(part, v, i) * inverse;
      part.Store(of_x + i, v, p * (part.Load(of_y + i, v) - mean));
    });
  }

  // The mean that is taken off a row, and what the rest is multiplied with.
  struct Scale {
    float mean, inverse;
    double count;  // that the squares are divided by
    bool is_zero;  // a row that has no direction
    bool is_short;  // one that is divided by epsilon, not by its length
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
    const Float mean = Set<Simd>(scale.mean);
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
    const Float mean = Set<Simd>(scale.mean), inverse = Set<Simd>(scale.inverse);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      Float z = (part.Load(x + i, v) - mean) * inverse;
      if (norm.gamma) z *= part.Load(norm.gamma + i, v);
      if (norm.beta) z += part.Load(norm.beta + i, v);
      part.Store(y + i, v, z);
    });
  }

  static void NormGradientRow(const RowNormGradient& gradient, std::int64_t row,
                              float* of_gamma, float* of_beta) {
    const std::int64_t size = gradient.size;
    const std::uint16_t* x = At(gradient.x, row * size);
    const std::uint16_t* of_y = At(gradient.of_y, row * size);
    std::uint16_t* of_x = At(gradient.of_x, row * size);
    const Scale scale = ScaleOf(x, size, gradient.kind, gradient.epsilon);
    const Float mean = Set<Simd>(scale.mean), inverse = Set<Simd>(scale.inverse);
    const auto z_at = [&](auto part, int v, std::int64_t i) {
      return (part.Load(x + i, v) - mean) * inverse;
    };
    const auto of_z_at = [&](auto part, int v, std::int64_t i) {
      const Float d = part.Load(of_y + i, v);
      return gradient.gamma ? d * part.Load(gradient.gamma + i, v) : d;
    };
    const Totals totals = SumPairs(size, [&](auto part, int v, std::int64_t i) {
      const Float of_z = of_z_at(part, v, i);
      return Pair{of_z, of_z * z_at(part, v, i)};
    });
    const bool centered = gradient.kind == RowNormKind::kLayer;
    const double through = centered ? totals.first / scale.count : 0;
    const Float through_mean = Set<Simd>(static_cast<float>(through));
    const double along = scale.is_short ? 0 : totals.second / scale.count;
    const Float through_length = Set<Simd>(static_cast<float>(along));
    const Float slope_inverse = Set<Simd>(scale.is_zero ? 0 : scale.inverse);
    ForEach(size, [&](auto part, int v, std::int64_t i) {
      const Float z = z_at(part, v, i);
      const Float slope = of_z_at(part, v, i) - through_mean - z * through_length;
      part.Store(of_x + i, v, slope * slope_inverse);
      const Float d = part.Load(of_y + i, v);
      if (of_gamma) part.Store(of_gamma + i, v, part.Load(of_gamma + i, v) + d * z);
      if (of_beta) part.Store(of_beta + i, v, part.Load(of_beta + i, v) + d);
    });
  }
};

// Calls the function of the format of a matrix.
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
                              float* of_gamma, float* of_beta) {
    With(gradient.type, [&](auto kernel) {
      kernel.NormGradientRow(gradient, row, of_gamma, of_beta);
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
