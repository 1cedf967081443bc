// The element-wise formulas of the update step (keras_mp/update.h has them in
// mathematical notation), compiled for vectors on a CPU and for scalars in a CUDA thread,
// so that both give the same bits. Arguments are FP32 values in registers: a gradient, a
// master, its slots. The template argument `Machine` has the type Float, a float or a
// vector of floats, Ints and Words, as many integers of 32 bits, with and without a sign,
// and, for each element,
//
//   Sqrt(x)
//   Min(x, y)     x < y ? x : y, so y where either is NaN
//   Max(x, y)     x > y ? x : y, likewise
//   Truncate(x)   x rounded toward 0, for |x| < 2^31 or NaN
//   Exponent(x)   2^floor(log2 |x|) for normal x; 0 for subnormal x; inf for inf and NaN
//   Differ(x, y)  whether x and y have different bits
//   Bits(x), FromBits(words)     the bits of a Float
//   AsInts(words), AsWords(ints), ToFloat(ints)
//
// Build and test on a CPU and in an emulator of CUDA:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test update_cuda_emulated_test &&
//   ctest --test-dir build/cpp -R update

#ifndef KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_

#include <type_traits>
#include <utility>

#include "common/half.h"
#include "common/host_device.h"
#include "keras_mp/update.h"

namespace keras_mp {

// The formats of masters of 24 bits, which have eight more bits of fraction than those of
// their weights: as below. The largest is the largest weight with the largest remainder.
// A number next to a master of bfloat16 weights, up or down, is at least 2^-126.
struct HalfMasterGrid {
  static constexpr float kLargest = 65519.875f;
  static constexpr float kSmallestPower = 0x1p-14f;
  static constexpr float kEpsilon = 0x1p-18f;
};

struct Bfloat16MasterGrid {
  static constexpr float kLargest = 0x1.fefep127f;
  static constexpr float kSmallestPower = 0x1p-110f;
  static constexpr float kEpsilon = 0x1p-15f;
};

// The 16-bit formats: the largest finite number; the machine epsilon, which is the ulp of
// 1; and the power of two below which the ulp no longer shrinks. That of FP16 is its
// smallest normal number. Bfloat16 has smaller ulps, down to 2^-133, but a processor that
// flushes FP32 numbers below 2^-126 to zero cannot compute with them. kFixedUpTo: the
// magnitude up to which the remainders of MasterPair are fixed-point numbers; elsewhere
// they lie between kLeastRemainder and kMostRemainder.
struct HalfGrid {
  using Masters = HalfMasterGrid;
  static constexpr float kLargest = 65504.0f;
  static constexpr float kSmallestPower = 0x1p-14f;
  static constexpr float kEpsilon = 0x1p-10f;
  static constexpr float kFixedUpTo = 0x1p-14f;
  static constexpr int kLeastRemainder = -4096;
  static constexpr int kMostRemainder = 4096;
};

struct Bfloat16Grid {
  using Masters = Bfloat16MasterGrid;
  static constexpr float kLargest = 0x1.fep127f;
  static constexpr float kSmallestPower = 0x1p-119f;
  static constexpr float kEpsilon = 0x1p-7f;
  static constexpr float kFixedUpTo = 0;
  static constexpr int kLeastRemainder = -32768;
  static constexpr int kMostRemainder = 32767;
};

template <UpdateRule kRule>
using RuleIs = std::integral_constant<UpdateRule, kRule>;

// SlotsOf(kRule) as a constant, since device code cannot call a host function.
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

  // Computes x / scale.
  class Unscaling {
   public:
    explicit KERAS_MP_HOST_DEVICE Unscaling(float scale) {
      const float inverse = 1 / scale;
      // The inverse of a power of two is exact, and multiplying is faster.
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
    return Machine::Min(most, Machine::Max(-most, x));  // NaN stays
  }

  // The unit in the last place of x: the distance to the next number of the format, a
  // power of two.
  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float Ulp(Float x) {
    const Float power = Machine::Exponent(x);
    const Float smallest = All(Grid::kSmallestPower);
    return Machine::Max(power, smallest) * Grid::kEpsilon;
  }

  // 1 / x, exactly, for a power of two from 2^-126 to 2^126; or no number for inf.
  static KERAS_MP_HOST_DEVICE Float InverseOfPower(Float x) {
    return Machine::FromBits(0x7f000000u - Machine::Bits(x));
  }

  // x rounded down, for |x| <= 2^23. A 16-bit number has less than 2^23 ulps.
  static KERAS_MP_HOST_DEVICE Float Floor(Float x) {
    const Float whole = Machine::Truncate(x);
    return whole > x ? whole - 1.0f : whole;
  }

  // The master, or the weight where that is not the master rounded to nearest, `nearest`.
  static KERAS_MP_HOST_DEVICE Float SyncNearest(Float master, Float nearest,
                                                  Float weight) {
    return Machine::Differ(nearest, weight) ? weight : master;
  }

  // The master, or the weight where that is neither the master rounded down nor up.
  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float SyncStochastic(Float master, Float weight) {
    const Float limited = Clip(master, Grid::kLargest);
    const Float ulps = InverseOfPower(Ulp<Grid>(limited));
    const Float in_ulps = limited * ulps, found = weight * ulps;
    return (found != Floor(in_ulps)) & (found != -Floor(-in_ulps)) ? weight : master;
  }

  template <class Grid>
  static KERAS_MP_HOST_DEVICE Float RoundStochastic(Float master, Float uniform) {
    const Float limited = Clip(master, Grid::kLargest);
    const Float ulp = Ulp<Grid>(limited);
    const Float in_ulps = limited * InverseOfPower(ulp);
    const Float down = Floor(in_ulps);
    const Float up = uniform < in_ulps - down ? All(1) : Float{};
    return (down + up) * ulp;
  }

  static KERAS_MP_HOST_DEVICE Float Abs(Float x) { return x < Float{} ? -x : x; }

  static KERAS_MP_HOST_DEVICE Float Sign(Float x) {
    return x > Float{} ? All(1) : (x < Float{} ? All(-1) : x - x);  // NaN stays
  }

  static KERAS_MP_HOST_DEVICE bool Clips(const UpdateHyperparameters& u) {
    return u.clip_value != 0 || u.clip_factor != 1;
  }

  // The un-scaled gradient g, clipped by its value, by a norm, or by both.
  static KERAS_MP_HOST_DEVICE Float Clipped(const UpdateHyperparameters& u, Float g) {
    if (u.clip_value != 0) g = Clip(g, u.clip_value);
    return g * u.clip_factor;
  }

  static KERAS_MP_HOST_DEVICE Float Decayed(const UpdateHyperparameters& u, Float w) {
    return w - w * u.weight_decay * u.learning_rate;
  }

  // What a rule takes of the gradient of one token, beside the sum of all of them.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE Float Power(Float g) {
    return kRule == UpdateRule::kAdamax ? Abs(g) : g * g;
  }

  // Updates the master w and the slots of the rule, which needs no norms, by the un-scaled
  // and clipped gradient g, and its power, or those of its tokens, added up.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void Step(const UpdateHyperparameters& u,
                                        bool apply_weight_decay, Float g, Float power,
                                        Float& w, Float (&slots)[kMostSlots]) {
    if (apply_weight_decay) w = Decayed(u, w);
    if constexpr (kRule == UpdateRule::kSgd) {
      w -= g * u.learning_rate;
    } else if constexpr (kRule == UpdateRule::kMomentum ||
                         kRule == UpdateRule::kNesterov) {
      Float& m = slots[0];
      m = m * u.momentum - g * u.learning_rate;
      w += kRule == UpdateRule::kMomentum ? m : m * u.momentum - g * u.learning_rate;
    } else if constexpr (kRule == UpdateRule::kLion) {
      Float& m = slots[0];
      w -= Sign(m * u.beta_1 + g * u.one_minus_beta_1) * u.learning_rate;
      m = m * u.beta_2 + g * u.one_minus_beta_2;
    } else if constexpr (kRule == UpdateRule::kAdagrad) {
      Float& v = slots[0];
      v += power;
      w -= g * u.learning_rate / Machine::Sqrt(v + u.epsilon);
    } else if constexpr (kRule == UpdateRule::kAdadelta) {
      Float &v = slots[0], &e = slots[1];
      v = v * u.beta_2 + power * u.one_minus_beta_2;
      const Float d = Machine::Sqrt(e + u.epsilon) * g / Machine::Sqrt(v + u.epsilon);
      e = e * u.beta_2 + d * d * u.one_minus_beta_2;
      w -= d * u.learning_rate;
    } else if constexpr (kRule == UpdateRule::kFtrl) {
      Float &n = slots[0], &z = slots[1];
      const Float sum = n + power;
      const Float root = Machine::Sqrt(sum);
      z += g + w * u.l2_shrinkage - (root - Machine::Sqrt(n)) / u.learning_rate * w;
      w = (Clip(z, u.l1) - z) / (root / u.learning_rate + u.l2);
      n = sum;
    } else if constexpr (kRule == UpdateRule::kAdamax) {
      Float &m = slots[0], &most = slots[1];
      m += (g - m) * u.one_minus_beta_1;
      most = Machine::Max(power, most * u.beta_2);
      w -= m * u.learning_rate / ((most + u.epsilon) * u.m_divisor);
    } else if constexpr (kIsRmsprop<kRule>) {
      StepRmsprop<kRule>(u, g, power, w, slots);
    } else {
      StepAdam<kRule>(u, g, power, w, slots);
    }
  }

  static KERAS_MP_HOST_DEVICE void StepMoments(const UpdateHyperparameters& u, Float g,
                                               Float power, Float& m, Float& v) {
    m += (g - m) * u.one_minus_beta_1;
    v += (power - v) * u.one_minus_beta_2;
  }

  // Where Lamb moves a master, by its moments m and v.
  static KERAS_MP_HOST_DEVICE Float LambDirection(const UpdateHyperparameters& u, Float m,
                                                  Float v) {
    return m / u.m_divisor / (Machine::Sqrt(v / u.v_divisor) + u.epsilon);
  }

  // Where Adafactor does, by its second moment v.
  static KERAS_MP_HOST_DEVICE Float AdafactorDirection(Float g, Float v) {
    return g / Machine::Sqrt(v);
  }

 private:
  template <UpdateRule kRule>
  static constexpr bool kIsRmsprop =
      kRule == UpdateRule::kRmsprop || kRule == UpdateRule::kRmspropMomentum ||
      kRule == UpdateRule::kCenteredRmsprop ||
      kRule == UpdateRule::kCenteredRmspropMomentum;

  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void StepRmsprop(const UpdateHyperparameters& u, Float g,
                                               Float power, Float& w,
                                               Float (&slots)[kMostSlots]) {
    constexpr bool kIsCentered = kRule == UpdateRule::kCenteredRmsprop ||
                                 kRule == UpdateRule::kCenteredRmspropMomentum;
    constexpr bool kHasMomentum = kRule == UpdateRule::kRmspropMomentum ||
                                  kRule == UpdateRule::kCenteredRmspropMomentum;
    Float &v = slots[0], &a = slots[1], &m = slots[kIsCentered ? 2 : 1];
    v = v * u.beta_2 + power * u.one_minus_beta_2;
    Float variance = v;
    if constexpr (kIsCentered) {
      a = a * u.beta_2 + g * u.one_minus_beta_2;
      variance = v - a * a;
    }
    Float step = g * u.learning_rate / Machine::Sqrt(variance + u.epsilon);
    if constexpr (kHasMomentum) step = m = m * u.momentum + step;
    w -= step;
  }

  // Adam, AMSGrad or Nadam.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void StepAdam(const UpdateHyperparameters& u, Float g,
                                            Float power, Float& w,
                                            Float (&slots)[kMostSlots]) {
    Float &m = slots[0], &v = slots[1], &h = slots[2];
    StepMoments(u, g, power, m, v);
    if constexpr (kRule == UpdateRule::kNadam) {
      const Float n = m * u.m_factor / u.m_divisor + g * u.g_factor / u.g_divisor;
      w -= n * u.learning_rate / (Machine::Sqrt(v / u.v_divisor) + u.epsilon);
    } else {
      if constexpr (kRule == UpdateRule::kAmsgrad) h = Machine::Max(v, h);
      const Float variance = kRule == UpdateRule::kAmsgrad ? h : v;
      w -= m * u.alpha / (Machine::Sqrt(variance) + u.epsilon);
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_UPDATE_FORMULAS_H_
