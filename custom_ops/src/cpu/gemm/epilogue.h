// The GEMM epilogue: scales the FP32 accumulators, adds the bias, applies the activation
// and rounds once.
//
//   to[i, j] = round(activation(alpha * from[i, j] + bias[j]))
//
// Both matrices are row-major, `from` in FP32 and `to` in `Format`; the bias is FP32.
//
// In a gradient of gelu:
//
//   to[i, j] = round(g[i, j]), sums[j] (+)= g[i, j],
//   g[i, j] = upstream[i, j] * gelu'(alpha * from[i, j] + bias[j])
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_EPILOGUE_H_
#define KERAS_MP_SRC_CPU_GEMM_EPILOGUE_H_

#include <cstdint>

#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"
#include "cpu/simd/vector_math.h"
#include "keras_mp/gemm.h"

namespace keras_mp {

// One row; no bias where null.
template <class Simd, class Format, class Activate>
static inline void ApplyEpilogueToRow(const float* from, std::int64_t count, float alpha,
                                      const float* bias, Activate activate,
                                      typename Format::Element* to) {
  constexpr int kWidth = Simd::kWidth;
  std::int64_t j = 0;
  for (; j + kWidth <= count; j += kWidth) {
    typename Simd::Float x = alpha * Load<Simd>(from + j);
    if (bias != nullptr) x += Load<Simd>(bias + j);
    Format::Store(to + j, activate(x));
  }
  if (j < count) {
    typename Simd::Float x = alpha * LoadPartial<Simd, Single<Simd>>(from + j, count - j);
    if (bias != nullptr) x += LoadPartial<Simd, Single<Simd>>(bias + j, count - j);
    StorePartial<Simd, Format>(to + j, activate(x), count - j);
  }
}

// All rows of a block [rows, columns], with row strides from_row and to_row.
template <class Simd, class Format>
void ApplyEpilogue(const float* from, std::int64_t from_row, std::int64_t rows,
                   std::int64_t columns, float alpha, const float* bias,
                   Activation activation, typename Format::Element* to,
                   std::int64_t to_row) {
  using Float = typename Simd::Float;
  using Math = VectorMath<Simd>;
  const auto finish = [&](auto activate) {
    for (std::int64_t i = 0; i < rows; ++i) {
      ApplyEpilogueToRow<Simd, Format>(from + i * from_row, columns, alpha, bias,
                                       activate, to + i * to_row);
    }
  };
  switch (activation) {
    case Activation::kNone:
      return finish([](Float x) { return x; });
    case Activation::kRelu:
      return finish([](Float x) { return Math::Relu(x); });
    case Activation::kTanh:
      return finish([](Float x) { return Math::Tanh(x); });
    case Activation::kSigmoid:
      return finish([](Float x) { return Math::Sigmoid(x); });
    case Activation::kGelu:
      return finish([](Float x) { return Math::Gelu(x); });
  }
}

// One row of a gradient of gelu; sums = g where `starts`, else +=.
template <class Simd, class Format, class Upstream>
static inline void ApplyGeluGradientToRow(const float* from, std::int64_t count,
                                          float alpha, const float* bias,
                                          const Upstream* upstream,
                                          typename Format::Element* to, bool starts,
                                          float* sums) {
  ForEachVector<Simd, Format>(count, [&](auto part, int v, std::int64_t j) {
    typename Simd::Float x = alpha * part.Load(from + j, v);
    if (bias != nullptr) x += part.Load(bias + j, v);
    const auto g = part.Load(upstream + j, v) * VectorMath<Simd>::GeluSlope(x);
    part.Store(to + j, v, g);
    part.Store(sums + j, v, starts ? g : part.Load(sums + j, v) + g);
  });
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_EPILOGUE_H_
