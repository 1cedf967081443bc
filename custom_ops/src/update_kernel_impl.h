// The kernels of update_kernel.h for one instruction set, as a template; see
// gemm_tile_impl.h.

#ifndef KERAS_MP_SRC_UPDATE_KERNEL_IMPL_H_
#define KERAS_MP_SRC_UPDATE_KERNEL_IMPL_H_

#include <cstdint>
#include <type_traits>

#include "simd.h"
#include "update_kernel.h"
#include "vectors.h"

namespace keras_mp {

// The 16-bit formats as rounding sees them: the largest finite number, and the spacing of
// the smallest ones. Processors that flush FP32 numbers below 2^-126 to zero cannot
// compute with a smaller one, though bfloat16 itself goes to 2^-133.
template <class Simd, class Format>
struct Grid;

template <class Simd>
struct Grid<Simd, Half<Simd>> {
  static constexpr float kLargest = 65504.0f;
  static constexpr float kSmallestPower = 0x1p-14f;
  static constexpr float kUnit = 0x1p-10f;
};

template <class Simd>
struct Grid<Simd, Bfloat16<Simd>> {
  static constexpr float kLargest = 0x1.fep127f;
  static constexpr float kSmallestPower = 0x1p-119f;
  static constexpr float kUnit = 0x1p-7f;
};

template <class Simd, class Format>
struct UpdateBlock {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Element = typename Format::Element;

  // Calls body(vectors, v, i) as Row::ForEach does.
  template <class Body>
  static void ForEach(std::int64_t n, const Body& body) {
    ForVectors<Simd, Format, 4>(n, [&](auto part, std::int64_t i) {
#pragma GCC unroll 4
      for (int v = 0; v < decltype(part)::kVectors; ++v) body(part, v, i);
    });
  }

  static Float Clip(Float x, float limit) {
    const Float most = Set<Simd>(limit);
    return x > most ? most : (x < -most ? -most : x);  // NaN stays
  }

  static bool Unscale(const Element* x, std::int64_t n, float scale, float* to) {
    const float inverse = 1 / scale;
    // Of a power of two the inverse is exact, and faster.
    const bool is_exact = (BitsOf(scale) & 0x7fffffu) == 0 && inverse >= 0x1p-126f;
    const Float by = Set<Simd>(is_exact ? inverse : scale);
    Ints bad = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float loaded = part.Load(x + i, v);
      const Float g = is_exact ? loaded * by : loaded / by;
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
    Format::Store(rounded, Clip(master, Grid<Simd, Format>::kLargest));
    return Format::Load(rounded);
  }

  // The distance of the neighbours of x, a power of two.
  static Float Spacing(Float x) {
    const Ints exponent = reinterpret_cast<Ints>(x) & 0x7f800000;
    const Float power = reinterpret_cast<Float>(exponent);
    const Float smallest = Set<Simd>(Grid<Simd, Format>::kSmallestPower);
    return (power > smallest ? power : smallest) * Grid<Simd, Format>::kUnit;
  }

  // For |x| <= 2^23: beyond, 16-bit formats have no numbers in these units.
  static Float Floor(Float x) {
    const Float whole = __builtin_convertvector(__builtin_convertvector(x, Ints), Float);
    return whole > x ? whole - 1.0f : whole;
  }

  static void Follow(float* master, const Element* weight, std::int64_t n,
                     Rounding rounding) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      const Float m = part.Load(master + i, v);
      Ints differs;
      if (rounding == Rounding::kNearest) {
        differs = reinterpret_cast<Ints>(Nearest(m)) != reinterpret_cast<Ints>(w);
      } else {
        const Float limited = Clip(m, Grid<Simd, Format>::kLargest);
        const Float spacing = Spacing(limited);
        const Float steps = limited / spacing, found = w / spacing;
        differs = (found != Floor(steps)) & (found != -Floor(-steps));
      }
      part.Store(master + i, v, differs ? w : m);
    });
  }

  static void CastNearest(const float* master, Element* weight, std::int64_t n) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v);
      part.Store(weight + i, v, Clip(m, Grid<Simd, Format>::kLargest));
    });
  }

  static void CastStochastic(const float* master, Element* weight, std::int64_t n,
                             const float* uniforms) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = Clip(part.Load(master + i, v), Grid<Simd, Format>::kLargest);
      const Float spacing = Spacing(m);
      const Float steps = m / spacing;
      const Float down = Floor(steps);
      const Float up = part.Load(uniforms + i, v) < steps - down ? Set<Simd>(1) : Float{};
      part.Store(weight + i, v, (down + up) * spacing);
    });
  }

  template <UpdateRule kRule>
  static void Step(const UpdateNumbers& numbers, bool decays, const float* gradient,
                   float* master, float* first, float* second, std::int64_t n) {
    const UpdateNumbers u = numbers;
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      Float g = part.Load(gradient + i, v);
      Float w = part.Load(master + i, v);
      if (u.clip_value != 0) g = Clip(g, u.clip_value);
      if (u.clip_factor != 1) g *= u.clip_factor;
      if (decays) w -= w * u.weight_decay * u.rate;
      if constexpr (kRule == UpdateRule::kSgd) {
        w -= g * u.rate;
      } else if constexpr (kRule == UpdateRule::kAdam) {
        Float m = part.Load(first + i, v), squares = part.Load(second + i, v);
        m += (g - m) * u.one_minus_beta_1;
        squares += (g * g - squares) * u.one_minus_beta_2;
        w -= m * u.alpha / (Simd::Sqrt(squares) + u.epsilon);
        part.Store(first + i, v, m);
        part.Store(second + i, v, squares);
      } else {
        Float m = part.Load(first + i, v);
        m = m * u.momentum - g * u.rate;
        part.Store(first + i, v, m);
        w += kRule == UpdateRule::kMomentum ? m : m * u.momentum - g * u.rate;
      }
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
  template <UpdateRule kRule>
  using RuleIs = std::integral_constant<UpdateRule, kRule>;

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

  static void Step(const UpdateNumbers& numbers, bool decays, const float* g,
                   float* master, float* m, float* v, std::int64_t n) {
    const auto as = [&](auto rule) {
      SingleBlock::template Step<decltype(rule)::value>(numbers, decays, g, master, m, v,
                                                        n);
    };
    switch (numbers.rule) {
      case UpdateRule::kSgd:
        return as(RuleIs<UpdateRule::kSgd>{});
      case UpdateRule::kMomentum:
        return as(RuleIs<UpdateRule::kMomentum>{});
      case UpdateRule::kNesterov:
        return as(RuleIs<UpdateRule::kNesterov>{});
      case UpdateRule::kAdam:
        return as(RuleIs<UpdateRule::kAdam>{});
    }
  }
};

template <class Simd>
constexpr UpdateKernel kUpdateKernel = {
    UpdateOf<Simd>::Unscale, UpdateOf<Simd>::SingleBlock::SumOfSquares,
    UpdateOf<Simd>::Follow,  UpdateOf<Simd>::Cast,
    UpdateOf<Simd>::Step,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_UPDATE_KERNEL_IMPL_H_
