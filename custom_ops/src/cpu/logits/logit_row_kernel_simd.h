// The computation on one row of a block of logits for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h. keras_mp/logit_statistics.h has the formulas.
//
//   cmake --build build/custom_ops --target logit_statistics_cpu_test &&
//     build/custom_ops/logit_statistics_cpu_test

#ifndef KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_SIMD_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/logits/logit_row_kernel.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"
#include "cpu/simd/vector_math.h"

namespace keras_mp {

template <class Simd>
class LogitRows {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Math = VectorMath<Simd>;
  static constexpr int kVectors = 4;

  // Calls body(part, v, i) for each vector of a row. The format matters to 16-bit elements
  // alone.
  template <class Format = Half<Simd>, class Body>
  static void ForRow(std::int64_t count, const Body& body) {
    ForEachVector<Simd, Format>(count, body);
  }

  static float Total(const Float (&sums)[kVectors]) {
    return Lanes<Simd>::Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  static Float Cap(Float x, float cap) {
    return cap == 0 ? x : cap * Math::Tanh(x / cap);
  }

 public:
  static void Add(const LogitRow& row, std::int64_t first, RowStatistics* statistics) {
    const float infinity = std::numeric_limits<float>::infinity();
    float* z = row.z;
    Float most[kVectors], totals[kVectors] = {};
    for (Float& one : most) one = Broadcast<Simd>(-infinity);
    ForRow(row.count, [&](auto part, int v, std::int64_t i) {
      Float x = part.Load(z + i, v);
      if (row.soft_cap != 0) part.Store(z + i, v, x = Cap(x, row.soft_cap));
      totals[v] += part.Fill(x, 0);
      most[v] = Simd::Max(part.Fill(x, -infinity), most[v]);  // ignores NaN
    });
    statistics->total += Total(totals);
    const float largest = Lanes<Simd>::Max(
        Simd::Max(Simd::Max(most[0], most[1]), Simd::Max(most[2], most[3])));
    if (largest > statistics->maximum) {
      std::int64_t at = 0;
      while (z[at] != largest) ++at;
      statistics->argmax = static_cast<std::int32_t>(first + at);
      statistics->exponentials *= std::exp(statistics->maximum - largest);
      statistics->maximum = largest;
    }
    // Without a logit above -inf the sum is 0, not NaN.
    const float shift = statistics->maximum == -infinity ? 0 : statistics->maximum;
    Float sums[kVectors] = {};
    ForRow(row.count, [&](auto part, int v, std::int64_t i) {
      sums[v] += part.Fill(Math::Exp(part.Load(z + i, v) - shift), 0);
    });
    statistics->exponentials += Total(sums);
    statistics->target += Target(row);
  }

  static void Differentiate(const LogitRow& row, const RowUpstream& upstream,
                            DataType type, float scale, void* slopes, float* bias_sums) {
    WithFormat(type, [&](auto format) {
      DifferentiateTo<decltype(format)>(row, upstream, scale, slopes, bias_sums);
    });
  }

  static void Accumulate(const float* terms, std::int64_t count, float* sums) {
    ForRow(count, [&](auto part, int v, std::int64_t i) {
      part.Store(sums + i, v, part.Load(sums + i, v) + part.Load(terms + i, v));
    });
  }

  static void Round(const float* sums, std::int64_t count, DataType type,
                    void* to) {
    WithFormat(type, [&](auto format) {
      using Format = decltype(format);
      auto* elements = static_cast<typename Format::Element*>(to);
      ForRow<Format>(count, [&](auto part, int v, std::int64_t i) {
        part.Store(elements + i, v, part.Load(sums + i, v));
      });
    });
  }

 private:
  template <class Body>
  static void WithFormat(DataType type, const Body& body) {
    switch (type) {
      case DataType::kHalf:
        return body(Half<Simd>());
      case DataType::kBfloat16:
        return body(Bfloat16<Simd>());
      case DataType::kFloat:
        return body(Single<Simd>());
    }
  }

  static float Target(const LogitRow& row) {
    if (row.targets == nullptr) {
      return row.label >= 0 && row.label < row.count ? row.z[row.label] : 0;
    }
    Float sums[kVectors] = {};
    ForRow(row.count, [&](auto part, int v, std::int64_t i) {
      const Float weights = part.Load(row.targets + i, v);
      sums[v] += weights == Float{} ? Float{} : weights * part.Load(row.z + i, v);
    });
    return Total(sums);
  }

  // 1 at the label among the words of a vector that begins with word i, else 0.
  static Float AtLabel(const LogitRow& row, std::int64_t i) {
    Ints lanes;
#pragma GCC unroll 16
    for (int lane = 0; lane < Simd::kWidth; ++lane) lanes[lane] = lane;
    const std::int64_t lane = row.label - i;
    if (lane < 0 || lane >= Simd::kWidth) return Float{};
    return lanes == static_cast<int>(lane) ? Broadcast<Simd>(1) : Float{};
  }

  template <class Format>
  static void DifferentiateTo(const LogitRow& row, const RowUpstream& upstream,
                              float scale, void* slopes, float* bias_sums) {
    auto* elements = static_cast<typename Format::Element*>(slopes);
    ForRow<Format>(row.count, [&](auto part, int v, std::int64_t i) {
      const Float z = Cap(part.Load(row.z + i, v), row.soft_cap);
      const Float targets = row.targets == nullptr
                                ? AtLabel(row, i + v * Simd::kWidth)
                                : part.Load(row.targets + i, v);
      Float slope = upstream.grad_logsumexp * Math::Exp(z - upstream.logsumexp) +
                    upstream.grad_total + upstream.grad_target * targets;
      if (row.soft_cap != 0) {
        const Float bent = z / row.soft_cap;
        slope *= 1 - bent * bent;
      }
      part.Store(elements + i, v, slope * scale);
      if (bias_sums != nullptr) {
        part.Store(bias_sums + i, v, part.Load(bias_sums + i, v) + slope);
      }
    });
  }
};

template <class Simd>
constexpr LogitRowKernel kLogitRowKernel = {
    LogitRows<Simd>::Add, LogitRows<Simd>::Differentiate, LogitRows<Simd>::Accumulate,
    LogitRows<Simd>::Round};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_SIMD_H_
