// The functions of cpu/update/update_kernel.h, which compute the formulas of keras_mp/update.h
// on contiguous blocks of up to kUpdateBlock elements: FP16, bfloat16 or FP32 gradients,
// FP32 masters and slots, 16-bit weights. They are templates over the vectors of an
// instruction set, `Simd`, compiled once for each.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#ifndef KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_

#include <algorithm>
#include <cstdint>

#include "cpu/simd/simd.h"
#include "common/update_formulas.h"
#include "cpu/update/update_kernel.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
struct Grid;
template <class Simd>
struct Grid<Simd, Half<Simd>> : HalfGrid {};
template <class Simd>
struct Grid<Simd, Bfloat16<Simd>> : Bfloat16Grid {};

// The operations on vectors that common/update_formulas.h is written in.
template <class Simd>
struct VectorMachine {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;

  static Float Sqrt(Float x) { return Simd::Sqrt(x); }
  static Float Truncate(Float x) {
    const Float whole = __builtin_convertvector(__builtin_convertvector(x, Ints), Float);
    return x == x ? whole : x;
  }
  static Float Exponent(Float x) {
    return reinterpret_cast<Float>(reinterpret_cast<Ints>(x) & 0x7f800000);
  }
  static Ints Differ(Float x, Float y) {
    return reinterpret_cast<Ints>(x) != reinterpret_cast<Ints>(y);
  }
};

template <class Simd, class Format>
struct UpdateBlock {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Element = typename Format::Element;
  using Formulas = UpdateFormulas<VectorMachine<Simd>>;
  using FormatGrid = Grid<Simd, Format>;

  static constexpr std::int64_t kPrefetchDistance = kUpdateBlock / 2;

  // Calls body(vectors, v, i) for the v-th of up to four vectors of elements from i on,
  // until n elements are done. `vectors` loads and stores them; the last ones may be
  // partial.
  template <class Body>
  static void ForEach(std::int64_t n, const Body& body) {
    ForVectors<Simd, Format, 4>(n, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) body(part, v, i);
    });
  }

  static std::int32_t Unscale(const Element* x, std::int64_t n, float scale, float* to) {
    const typename Formulas::Unscaling unscaled(scale);
    Ints largest = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      // The prefetcher of the processor starts later, and stops at the end of each page.
      __builtin_prefetch(x + i + v * Simd::kWidth + kPrefetchDistance);
      const Float g = unscaled(part.Load(x + i, v));
      part.Store(to + i, v, g);
      const Ints magnitude = reinterpret_cast<Ints>(g) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    });
    std::int32_t most = 0;
    for (int i = 0; i < Simd::kWidth; ++i) most = std::max(most, largest[i]);
    return most;
  }

  static float SumOfSquares(const float* x, std::int64_t n) {
    Float sums[4] = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float element = part.Load(x + i, v);
      sums[v] += element * element;
    });
    const Float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0;
    for (int i = 0; i < Simd::kWidth; ++i) total += sum[i];
    return total;
  }

  static Float Nearest(Float master) {
    Element rounded[Simd::kWidth];
    Format::Store(rounded, Formulas::Clip(master, FormatGrid::kLargest));
    return Format::Load(rounded);
  }

  static void SyncMasters(float* master, const Element* weight, std::int64_t n,
                          Rounding rounding) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      const Float m = part.Load(master + i, v);
      part.Store(master + i, v,
                 rounding == Rounding::kNearest
                     ? Formulas::SyncNearest(m, Nearest(m), w)
                     : Formulas::template SyncStochastic<FormatGrid>(m, w));
    });
  }

  static void CastNearest(const float* master, Element* weight, std::int64_t n) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v);
      part.Store(weight + i, v, Formulas::Clip(m, FormatGrid::kLargest));
    });
  }

  static void CastStochastic(const float* master, Element* weight, std::int64_t n,
                             const float* uniforms) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v), uniform = part.Load(uniforms + i, v);
      part.Store(weight + i, v,
                 Formulas::template RoundStochastic<FormatGrid>(m, uniform));
    });
  }

  template <UpdateRule kRule>
  static void Step(const UpdateHyperparameters& hyperparameters, bool apply_weight_decay,
                   const float* gradient, float* master, float* const* slots,
                   std::int64_t n) {
    constexpr int kSlots = kSlotsOf<kRule>;
    const UpdateHyperparameters u = hyperparameters;
    float* to[kMostSlots] = {};
    for (int k = 0; k < kSlots; ++k) to[k] = slots[k];
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float g = part.Load(gradient + i, v);
      Float w = part.Load(master + i, v), s[kMostSlots] = {};
      for (int k = 0; k < kSlots; ++k) s[k] = part.Load(to[k] + i, v);
      Formulas::template Step<kRule>(u, apply_weight_decay, g, w, s);
      for (int k = 0; k < kSlots; ++k) part.Store(to[k] + i, v, s[k]);
      part.Store(master + i, v, w);
    });
  }
};

// Dispatches to the function of the 16-bit format and of the rule.
template <class Simd>
struct UpdateOf {
  using HalfBlock = UpdateBlock<Simd, Half<Simd>>;
  using BfloatBlock = UpdateBlock<Simd, Bfloat16<Simd>>;
  using SingleBlock = UpdateBlock<Simd, Single<Simd>>;

  static std::int32_t Unscale(const void* x, DataType type, std::int64_t n, float scale,
                              float* to) {
    const auto* halves = static_cast<const std::uint16_t*>(x);
    if (type == DataType::kHalf) return HalfBlock::Unscale(halves, n, scale, to);
    if (type == DataType::kBfloat16) return BfloatBlock::Unscale(halves, n, scale, to);
    return SingleBlock::Unscale(static_cast<const float*>(x), n, scale, to);
  }

  static void SyncMasters(float* master, const std::uint16_t* weight, DataType type,
                          std::int64_t n, Rounding rounding) {
    type == DataType::kHalf ? HalfBlock::SyncMasters(master, weight, n, rounding)
                            : BfloatBlock::SyncMasters(master, weight, n, rounding);
  }

  static void Cast(const float* master, std::uint16_t* weight, DataType type,
                   std::int64_t n, const float* uniforms) {
    if (uniforms == nullptr) {
      type == DataType::kHalf ? HalfBlock::CastNearest(master, weight, n)
                              : BfloatBlock::CastNearest(master, weight, n);
    } else {
      type == DataType::kHalf ? HalfBlock::CastStochastic(master, weight, n, uniforms)
                              : BfloatBlock::CastStochastic(master, weight, n, uniforms);
    }
  }

  static void Step(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
                   bool apply_weight_decay, const float* g, float* master,
                   float* const* slots, std::int64_t n) {
    WithRule(rule, [&](auto constant) {
      SingleBlock::template Step<constant.value>(hyperparameters, apply_weight_decay, g,
                                                 master, slots, n);
    });
  }
};

template <class Simd>
constexpr UpdateKernel kUpdateKernel = {
    UpdateOf<Simd>::Unscale,     UpdateOf<Simd>::SingleBlock::SumOfSquares,
    UpdateOf<Simd>::SyncMasters, UpdateOf<Simd>::Cast,
    UpdateOf<Simd>::Step,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_
