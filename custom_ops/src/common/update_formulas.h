// The formulas of the update step, for the vectors of a CPU and the numbers of a CUDA
// thread alike, so that both give the same bits. `Machine` has the type Float, one number
// or several, and
//
//   Sqrt(x)
//   Truncate(x)   for |x| < 2^31 or NaN
//   Exponent(x)   x with a fraction of 1: a power of two, 0, or inf
//   Differ(x, y)  whether the bits of two numbers differ

#ifndef KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_

#include <type_traits>
#include <utility>

#include "common/half.h"
#include "common/host_device.h"
#include "keras_mp/update.h"

namespace keras_mp {

// The 16-bit formats as rounding sees them: the largest finite number, and the spacing of
// the smallest ones. Processors that flush FP32 numbers below 2^-126 to zero cannot
// compute with a smaller one, though bfloat16 itself goes to 2^-133.
struct HalfGrid {
  static constexpr float kLargest = 65504.0f;
  static constexpr float kSmallestPower = 0x1p-14f;
  static constexpr float kUnit = 0x1p-10f;
};

struct Bfloat16Grid {
  static constexpr float kLargest = 0x1.fep127f;
  static constexpr float kSmallestPower = 0x1p-119f;
  static constexpr float kUnit = 0x1p-7f;
};

template <UpdateRule kRule>
using RuleIs = std::integral_constant<UpdateRule, kRule>;

// SlotsOf(kRule) as a number: device code calls no function of the host.
template <UpdateRule kRule>
constexpr int kSlotsOf = SlotsOf(kRule);

template <class Work, int... kRules>
void WithRule(UpdateRule rule, const Work& work, std::integer_sequence<int, kRules...>) {
  ((static_cast<int>(rule) == kRules ? work(RuleIs<static_cast<UpdateRule>(kRules)>{})
                                     : void()),
   ...);
}

// Calls work(RuleIs<rule>{}).
template <class Work>
void WithRule(UpdateRule rule, const Work& work) {
  WithRule(rule, work, std::make_integer_sequence<int, kUpdateRules>{});
}

template <class Machine>
struct UpdateFormulas {
  using Float = typename Machine::Float;

  // x / scale.
  class Unscaling {
   public:
    explicit KERAS_MP_HOST_DEVICE Unscaling(float scale) {
      const float inverse = 1 / scale;
      // Of a power of two the inverse is exact, and faster.
      multiplies_ = (BitsOf(scale) & 0x7fffffu) == 0 && inverse >= 0x1p-126f;
      by_ = multiplies_ ? inverse : scale;
    }
    KERAS_MP_HOST_DEVICE Float operator()(Float x) const {
      return multiplies_ ? x * by_ : x / by_;
    }

   private:
    bool multiplies_;
    float by_;
  };

  static KERAS_MP_HOST_DEVICE Float All(float x) { return x - Float{}; }

  static KERAS_MP_HOST_DEVICE Float Clip(Float x, float limit) {
    const Float most = All(limit);
    return x > most ? most : (x < -most ? -most : x);  // NaN stays
  }

  // The distance of the neighbours of x, a power of two.
  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float Spacing(Float x) {
    const Float power = Machine::Exponent(x);
    const Float smallest = All(Grid::kSmallestPower);
    return (power > smallest ? power : smallest) * Grid::kUnit;
  }

  // For |x| <= 2^23: beyond, 16-bit formats have no numbers in these units.
  static KERAS_MP_HOST_DEVICE Float Floor(Float x) {
    const Float whole = Machine::Truncate(x);
    return whole > x ? whole - 1.0f : whole;
  }

  // The master that follows its weight. `nearest`: its rounding to nearest.
  static KERAS_MP_HOST_DEVICE Float FollowNearest(Float master, Float nearest,
                                                  Float weight) {
    return Machine::Differ(nearest, weight) ? weight : master;
  }

  // The same for a weight that was rounded to either neighbour.
  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float FollowStochastic(Float master, Float weight) {
    const Float limited = Clip(master, Grid::kLargest);
    const Float spacing = Spacing<Grid>(limited);
    const Float steps = limited / spacing, found = weight / spacing;
    return (found != Floor(steps)) & (found != -Floor(-steps)) ? weight : master;
  }

  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float RoundStochastic(Float master, Float uniform) {
    const Float limited = Clip(master, Grid::kLargest);
    const Float spacing = Spacing<Grid>(limited);
    const Float steps = limited / spacing;
    const Float down = Floor(steps);
    const Float up = uniform < steps - down ? All(1) : Float{};
    return (down + up) * spacing;
  }

  // If one of them is NaN, x is.
  static KERAS_MP_HOST_DEVICE Float Max(Float x, Float y) { return y > x ? y : x; }

  static KERAS_MP_HOST_DEVICE Float Abs(Float x) { return x < Float{} ? -x : x; }

  static KERAS_MP_HOST_DEVICE Float Sign(Float x) {
    return x > Float{} ? All(1) : (x < Float{} ? All(-1) : x - x);  // NaN stays
  }

  // Moves w by the gradient g, and the slots that the rule has.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void Step(const UpdateNumbers& u, bool decays, Float g,
                                        Float& w, Float (&slots)[kMostSlots]) {
    if (u.clip_value != 0) g = Clip(g, u.clip_value);
    if (u.clip_factor != 1) g *= u.clip_factor;
    if (decays) w -= w * u.weight_decay * u.rate;
    if constexpr (kRule == UpdateRule::kSgd) {
      w -= g * u.rate;
    } else if constexpr (kRule == UpdateRule::kMomentum ||
                         kRule == UpdateRule::kNesterov) {
      Float& m = slots[0];
      m = m * u.momentum - g * u.rate;
      w += kRule == UpdateRule::kMomentum ? m : m * u.momentum - g * u.rate;
    } else if constexpr (kRule == UpdateRule::kLion) {
      Float& m = slots[0];
      w -= Sign(m * u.beta_1 + g * u.one_minus_beta_1) * u.rate;
      m = m * u.beta_2 + g * u.one_minus_beta_2;
    } else if constexpr (kRule == UpdateRule::kAdagrad) {
      Float& v = slots[0];
      v += g * g;
      w -= g * u.rate / Machine::Sqrt(v + u.epsilon);
    } else if constexpr (kRule == UpdateRule::kAdadelta) {
      Float &v = slots[0], &e = slots[1];
      v = v * u.beta_2 + g * g * u.one_minus_beta_2;
      const Float d = Machine::Sqrt(e + u.epsilon) * g / Machine::Sqrt(v + u.epsilon);
      e = e * u.beta_2 + d * d * u.one_minus_beta_2;
      w -= d * u.rate;
    } else if constexpr (kRule == UpdateRule::kAdamax) {
      Float &m = slots[0], &most = slots[1];
      m += (g - m) * u.one_minus_beta_1;
      most = Max(most * u.beta_2, Abs(g));
      w -= m * u.rate / ((most + u.epsilon) * u.m_divisor);
    } else if constexpr (kIsRmsprop<kRule>) {
      StepRmsprop<kRule>(u, g, w, slots);
    } else {
      StepAdam<kRule>(u, g, w, slots);
    }
  }

 private:
  template <UpdateRule kRule>
  static constexpr bool kIsRmsprop =
      kRule == UpdateRule::kRmsprop || kRule == UpdateRule::kRmspropMomentum ||
      kRule == UpdateRule::kCenteredRmsprop ||
      kRule == UpdateRule::kCenteredRmspropMomentum;

  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void StepRmsprop(const UpdateNumbers& u, Float g, Float& w,
                                               Float (&slots)[kMostSlots]) {
    constexpr bool kIsCentered = kRule == UpdateRule::kCenteredRmsprop ||
                                 kRule == UpdateRule::kCenteredRmspropMomentum;
    constexpr bool kHasMomentum = kRule == UpdateRule::kRmspropMomentum ||
                                  kRule == UpdateRule::kCenteredRmspropMomentum;
    Float &v = slots[0], &a = slots[1], &m = slots[kIsCentered ? 2 : 1];
    v = v * u.beta_2 + g * g * u.one_minus_beta_2;
    Float variance = v;
    if constexpr (kIsCentered) {
      a = a * u.beta_2 + g * u.one_minus_beta_2;
      variance = v - a * a;
    }
    Float step = g * u.rate / Machine::Sqrt(variance + u.epsilon);
    if constexpr (kHasMomentum) step = m = m * u.momentum + step;
    w -= step;
  }

  // Adam, AMSGrad or Nadam.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void StepAdam(const UpdateNumbers& u, Float g, Float& w,
                                            Float (&slots)[kMostSlots]) {
    Float &m = slots[0], &v = slots[1], &h = slots[2];
    m += (g - m) * u.one_minus_beta_1;
    v += (g * g - v) * u.one_minus_beta_2;
    if constexpr (kRule == UpdateRule::kNadam) {
      const Float n = m * u.m_factor / u.m_divisor + g * u.g_factor / u.g_divisor;
      w -= n * u.rate / (Machine::Sqrt(v / u.v_divisor) + u.epsilon);
    } else {
      if constexpr (kRule == UpdateRule::kAmsgrad) h = Max(h, v);
      w -= m * u.alpha / (Machine::Sqrt(kRule == UpdateRule::kAmsgrad ? h : v) + u.epsilon);
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_
