// The formulas of update.h on scalars, one rounded FP32 operation at a time.

#ifndef KERAS_MP_TESTS_COMMON_UPDATE_ORACLE_H_
#define KERAS_MP_TESTS_COMMON_UPDATE_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/fixture.h"
#include "keras_mp/update.h"

namespace keras_mp {

inline float Limited(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;  // NaN stays
}

inline float Largest(DataType type) {
  return type == DataType::kHalf ? 65504.0f : 0x1.fep127f;
}

inline float Ulp(DataType type, float x) {
  const int exponent = x == 0 ? -200 : std::ilogb(x);
  return type == DataType::kHalf ? std::ldexp(1.0f, std::max(exponent, -14) - 10)
                                 : std::ldexp(1.0f, std::max(exponent, -119) - 7);
}

inline std::uint16_t Cast(DataType type, float master, const float* uniform) {
  const float x = Limited(master, Largest(type));
  if (uniform == nullptr) return To16(type, x);
  const float ulp = Ulp(type, x);
  const float in_ulps = x / ulp;
  const float down = std::floor(in_ulps);
  return To16(type, (down + (*uniform < in_ulps - down ? 1.0f : 0.0f)) * ulp);
}

inline bool IsARounding(DataType type, std::uint16_t weight, float master,
                        Rounding rounding) {
  if (rounding == Rounding::kNearest) return weight == Cast(type, master, nullptr);
  const float x = Limited(master, Largest(type));
  const float in_ulps = x / Ulp(type, x);
  const float found = From16(type, weight) / Ulp(type, x);
  return found == std::floor(in_ulps) || found == std::ceil(in_ulps);
}

// The master after SyncMastersFromWeights.
inline float SyncedMaster(DataType type, std::uint16_t weight, float master,
                          Rounding rounding) {
  return IsARounding(type, weight, master, rounding) ? master : From16(type, weight);
}

// The larger of two magnitudes, of which NaN is the largest.
inline float LargerMagnitude(float x, float y) {
  return std::isnan(x) || x > y ? x : y;
}

// An FP32 number; every operation on it is rounded to FP32.
struct Fp32 {
  float value;
};

// `volatile` keeps the compiler from contracting operations.
inline Fp32 AsRounded(float exact) {
  const volatile float value = exact;
  return {value};
}

inline Fp32 operator+(Fp32 a, Fp32 b) { return AsRounded(a.value + b.value); }
inline Fp32 operator-(Fp32 a, Fp32 b) { return AsRounded(a.value - b.value); }
inline Fp32 operator*(Fp32 a, Fp32 b) { return AsRounded(a.value * b.value); }
inline Fp32 operator/(Fp32 a, Fp32 b) { return AsRounded(a.value / b.value); }
inline Fp32 Root(Fp32 x) { return AsRounded(std::sqrt(x.value)); }

inline Fp32 Sign(Fp32 x) {
  return std::isnan(x.value) ? x : Fp32{float(x.value > 0) - float(x.value < 0)};
}

inline Fp32 Larger(Fp32 x, Fp32 y) { return y.value > x.value ? y : x; }

inline bool HasCenter(UpdateRule rule) {
  return rule == UpdateRule::kCenteredRmsprop ||
         rule == UpdateRule::kCenteredRmspropMomentum;
}

// Makes random slots possible for the rule: squares and variances are not negative.
inline void MakePossible(UpdateRule rule, float* slots) {
  const auto make_square = [&](int k) { slots[k] = std::abs(slots[k]); };
  switch (rule) {
    case UpdateRule::kSgd:
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
    case UpdateRule::kLion:
      return;
    case UpdateRule::kAmsgrad:
      make_square(2);
      [[fallthrough]];
    case UpdateRule::kAdam:
    case UpdateRule::kNadam:
    case UpdateRule::kAdamax:
    case UpdateRule::kLamb:
      make_square(1);
      return;
    case UpdateRule::kAdadelta:
      make_square(1);
      [[fallthrough]];
    case UpdateRule::kAdagrad:
    case UpdateRule::kFtrl:
    case UpdateRule::kRmsprop:
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kCenteredRmsprop:
    case UpdateRule::kCenteredRmspropMomentum:
    case UpdateRule::kAdafactor:
      make_square(0);
      if (HasCenter(rule)) slots[0] += slots[1] * slots[1];
      return;
  }
}

// Updates w and the slots by the rule. `squares`, `magnitudes`: of g, or of its tokens.
inline void Move(UpdateRule rule, const UpdateHyperparameters& u, Fp32 g, Fp32 squares,
                 Fp32 magnitudes, Fp32& w, Fp32* slots) {
  const Fp32 rate{u.learning_rate}, momentum{u.momentum};
  const Fp32 alpha{u.alpha}, epsilon{u.epsilon};
  const Fp32 beta_1{u.beta_1}, rest_1{u.one_minus_beta_1};
  const Fp32 beta_2{u.beta_2}, rest_2{u.one_minus_beta_2};
  const Fp32 step = rate * g;
  switch (rule) {
    case UpdateRule::kSgd:
      w = w - step;
      return;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov: {
      Fp32& m = slots[0];
      m = m * momentum - step;
      w = w + (rule == UpdateRule::kMomentum ? m : m * momentum - step);
      return;
    }
    case UpdateRule::kAdam:
    case UpdateRule::kAmsgrad:
    case UpdateRule::kNadam: {
      Fp32 &m = slots[0], &v = slots[1], &most = slots[2];
      m = m + (g - m) * rest_1;
      v = v + (squares - v) * rest_2;
      if (rule == UpdateRule::kAmsgrad) most = Larger(most, v);
      if (rule == UpdateRule::kNadam) {
        const Fp32 of_m = Fp32{u.m_factor} * m / Fp32{u.m_divisor};
        const Fp32 of_g = Fp32{u.g_factor} * g / Fp32{u.g_divisor};
        w = w - (of_m + of_g) * rate / (Root(v / Fp32{u.v_divisor}) + epsilon);
      } else {
        w = w - m * alpha / (Root(rule == UpdateRule::kAmsgrad ? most : v) + epsilon);
      }
      return;
    }
    case UpdateRule::kAdamax: {
      Fp32 &m = slots[0], &most = slots[1];
      m = m + (g - m) * rest_1;
      most = Larger(beta_2 * most, magnitudes);
      w = w - rate * m / (Fp32{u.m_divisor} * (most + epsilon));
      return;
    }
    case UpdateRule::kLion: {
      Fp32& m = slots[0];
      w = w - rate * Sign(m * beta_1 + g * rest_1);
      m = m * beta_2 + g * rest_2;
      return;
    }
    case UpdateRule::kAdagrad:
      slots[0] = slots[0] + squares;
      w = w - step / Root(slots[0] + epsilon);
      return;
    case UpdateRule::kAdadelta: {
      Fp32 &v = slots[0], &moved = slots[1];
      v = beta_2 * v + rest_2 * squares;
      const Fp32 delta = Root(moved + epsilon) * g / Root(v + epsilon);
      moved = beta_2 * moved + rest_2 * (delta * delta);
      w = w - rate * delta;
      return;
    }
    case UpdateRule::kFtrl: {
      Fp32 &n = slots[0], &z = slots[1];
      const Fp32 sum = n + squares;
      const Fp32 sigma = (Root(sum) - Root(n)) / rate;
      z = z + ((g + Fp32{u.l2_shrinkage} * w) - sigma * w);
      const Fp32 within{Limited(z.value, u.l1)};
      w = (within - z) / (Root(sum) / rate + Fp32{u.l2});
      n = sum;
      return;
    }
    case UpdateRule::kRmsprop:
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kCenteredRmsprop:
    case UpdateRule::kCenteredRmspropMomentum: {
      Fp32& v = slots[0];
      v = beta_2 * v + rest_2 * squares;
      Fp32 variance = v;
      if (HasCenter(rule)) {
        slots[1] = beta_2 * slots[1] + rest_2 * g;
        variance = v - slots[1] * slots[1];
      }
      Fp32 moved = step / Root(variance + epsilon);
      if (rule == UpdateRule::kRmspropMomentum ||
          rule == UpdateRule::kCenteredRmspropMomentum) {
        Fp32& m = slots[SlotsOf(rule) - 1];
        moved = m = momentum * m + moved;
      }
      w = w - moved;
      return;
    }
    case UpdateRule::kLamb:       // lamb_suite.h
    case UpdateRule::kAdafactor:  // adafactor_suite.h
      return;
  }
}

// `powers`: null for those of the gradient itself.
inline void Step(UpdateRule rule, const UpdateHyperparameters& u, bool apply_weight_decay,
                 float gradient, const float* powers, float& master, float* slots) {
  Fp32 g = Fp32{gradient} / Fp32{u.scale}, w{master};
  if (u.clip_value != 0) g.value = Limited(g.value, u.clip_value);
  g = g * Fp32{u.clip_factor};
  if (apply_weight_decay) w = w - w * Fp32{u.weight_decay} * Fp32{u.learning_rate};
  Fp32 s[kMostSlots];
  for (int k = 0; k < kMostSlots; ++k) s[k].value = slots[k];
  const Fp32 squares = powers ? Fp32{*powers} : g * g;
  const Fp32 magnitudes{powers ? *powers : std::abs(g.value)};
  Move(rule, u, g, squares, magnitudes, w, s);
  for (int k = 0; k < kMostSlots; ++k) slots[k] = s[k].value;
  master = w.value;
}

// Equal bits, or both NaN of any payload.
inline bool SameNumber(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

inline bool SameNumber(DataType type, std::uint16_t a, std::uint16_t b) {
  return SameNumber(From16(type, a), From16(type, b));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_UPDATE_ORACLE_H_
