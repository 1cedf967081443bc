// The kernels of cpu/update/kernel.h for one instruction set, as a template; see
// cpu/gemm/gemm_kernel_simd.h.

#ifndef KERAS_MP_SRC_CPU_UPDATE_KERNEL_IMPL_H_
#define KERAS_MP_SRC_CPU_UPDATE_KERNEL_IMPL_H_

#include <cstdint>

#include "cpu/simd/simd.h"
#include "common/update_formulas.h"
#include "cpu/update/kernel.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
struct Grid;
template <class Simd>
struct Grid<Simd, Half<Simd>> : HalfGrid {};
template <class Simd>
struct Grid<Simd, Bfloat16<Simd>> : Bfloat16Grid {};

// What common/update_formulas.h asks of a vector.
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

  static constexpr std::int64_t kAhead = kUpdateBlock / 2;

  // Calls body(vectors, v, i) as Row::ForEach does.
  template <class Body>
  static void ForEach(std::int64_t n, const Body& body) {
    ForVectors<Simd, Format, 4>(n, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) body(part, v, i);
    });
  }

  static bool Unscale(const Element* x, std::int64_t n, float scale, float* to) {
    const typename Formulas::Unscaling unscaled(scale);
    Ints bad = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      // From memory, and sooner than a processor does, which stops at the end of a page.
      __builtin_prefetch(x + i + v * Simd::kWidth + kAhead);
      const Float g = unscaled(part.Load(x + i, v));
      part.Store(to + i, v, g);
      bad |= (reinterpret_cast<Ints>(g) & 0x7f800000) == 0x7f800000;
    });
    int any = 0;
    for (int i = 0; i < Simd::kWidth; ++i) any |= bad[i];
    return any == 0;
  }

  static float SumOfSquares(const float* x, std::int64_t n) {
    Float sums[4] = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float number = part.Load(x + i, v);
      sums[v] += number * number;
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

  static void Follow(float* master, const Element* weight, std::int64_t n,
                     Rounding rounding) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      const Float m = part.Load(master + i, v);
      part.Store(master + i, v,
                 rounding == Rounding::kNearest
                     ? Formulas::FollowNearest(m, Nearest(m), w)
                     : Formulas::template FollowStochastic<FormatGrid>(m, w));
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
      part.Store(weight + i, v, Formulas::template RoundStochastic<FormatGrid>(m, uniform));
    });
  }

  template <UpdateRule kRule>
  static void Step(const UpdateNumbers& numbers, bool decays, const float* gradient,
                   float* master, float* const* slots, std::int64_t n) {
    constexpr int kSlots = kSlotsOf<kRule>;
    const UpdateNumbers u = numbers;
    float* to[kMostSlots] = {};
    for (int k = 0; k < kSlots; ++k) to[k] = slots[k];
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float g = part.Load(gradient + i, v);
      Float w = part.Load(master + i, v), s[kMostSlots] = {};
      for (int k = 0; k < kSlots; ++k) s[k] = part.Load(to[k] + i, v);
      Formulas::template Step<kRule>(u, decays, g, w, s);
      for (int k = 0; k < kSlots; ++k) part.Store(to[k] + i, v, s[k]);
      part.Store(master + i, v, w);
    });
  }
};

// Calls the function of the format and of the rule.
template <class Simd>
struct UpdateOf {
  using HalfBlock = UpdateBlock<Simd, Half<Simd>>;
  using BfloatBlock = UpdateBlock<Simd, Bfloat16<Simd>>;
  using SingleBlock = UpdateBlock<Simd, Single<Simd>>;

  static bool Unscale(const void* x, DataType type, std::int64_t n, float scale,
                      float* to) {
    const auto* halves = static_cast<const std::uint16_t*>(x);
    if (type == DataType::kHalf) return HalfBlock::Unscale(halves, n, scale, to);
    if (type == DataType::kBfloat16) return BfloatBlock::Unscale(halves, n, scale, to);
    return SingleBlock::Unscale(static_cast<const float*>(x), n, scale, to);
  }

  static void Follow(float* master, const std::uint16_t* weight, DataType type,
                     std::int64_t n, Rounding rounding) {
    type == DataType::kHalf ? HalfBlock::Follow(master, weight, n, rounding)
                            : BfloatBlock::Follow(master, weight, n, rounding);
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

  static void Step(UpdateRule rule, const UpdateNumbers& numbers, bool decays,
                   const float* g, float* master, float* const* slots, std::int64_t n) {
    WithRule(rule, [&](auto constant) {
      SingleBlock::template Step<constant.value>(numbers, decays, g, master, slots, n);
    });
  }
};

template <class Simd>
constexpr UpdateKernel kUpdateKernel = {
    UpdateOf<Simd>::Unscale, UpdateOf<Simd>::SingleBlock::SumOfSquares,
    UpdateOf<Simd>::Follow,  UpdateOf<Simd>::Cast,
    UpdateOf<Simd>::Step,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_KERNEL_IMPL_H_
