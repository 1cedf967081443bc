// The formulas of update.h, one number and one operation at a time.

#ifndef KERAS_MP_TESTS_UPDATE_ORACLE_H_
#define KERAS_MP_TESTS_UPDATE_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu_fixture.h"
#include "keras_mp/update.h"

namespace keras_mp {

inline float Limited(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;  // NaN stays
}

inline float Largest(DataType type) {
  return type == DataType::kHalf ? 65504.0f : 0x1.fep127f;
}

inline float Spacing(DataType type, float x) {
  const int exponent = x == 0 ? -200 : std::ilogb(x);
  return type == DataType::kHalf ? std::ldexp(1.0f, std::max(exponent, -14) - 10)
                                 : std::ldexp(1.0f, std::max(exponent, -119) - 7);
}

inline std::uint16_t Cast(DataType type, float master, const float* uniform) {
  const float x = Limited(master, Largest(type));
  if (uniform == nullptr) return To16(type, x);
  const float spacing = Spacing(type, x);
  const float steps = x / spacing;
  const float down = std::floor(steps);
  return To16(type, (down + (*uniform < steps - down ? 1.0f : 0.0f)) * spacing);
}

inline bool IsARounding(DataType type, std::uint16_t weight, float master,
                        Rounding rounding) {
  if (rounding == Rounding::kNearest) return weight == Cast(type, master, nullptr);
  const float x = Limited(master, Largest(type));
  const float steps = x / Spacing(type, x);
  const float found = From16(type, weight) / Spacing(type, x);
  return found == std::floor(steps) || found == std::ceil(steps);
}

inline float Followed(DataType type, std::uint16_t weight, float master,
                      Rounding rounding) {
  return IsARounding(type, weight, master, rounding) ? master : From16(type, weight);
}

inline void Step(UpdateRule rule, const UpdateNumbers& u, bool decays, float gradient,
                 float& w, float& m, float& v) {
  // `volatile` keeps the compiler from contracting.
  volatile float g = gradient / u.scale;
  if (u.clip_value != 0) g = Limited(g, u.clip_value);
  g = g * u.clip_factor;
  volatile float part;
  if (decays) {
    part = w * u.weight_decay;
    part = part * u.rate;
    w = w - part;
  }
  volatile float step = g * u.rate;
  switch (rule) {
    case UpdateRule::kSgd:
      w = w - step;
      return;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      part = m * u.momentum;
      m = part - step;
      if (rule == UpdateRule::kMomentum) {
        w = w + m;
      } else {
        part = m * u.momentum;
        part = part - step;
        w = w + part;
      }
      return;
    case UpdateRule::kAdam:
      part = g - m;
      part = part * u.one_minus_beta_1;
      m = m + part;
      part = g * g;
      part = part - v;
      part = part * u.one_minus_beta_2;
      v = v + part;
      part = m * u.alpha;
      volatile float below = std::sqrt(v) + u.epsilon;
      part = part / below;
      w = w - part;
      return;
  }
}

// What a NaN carries does not matter.
inline bool SameNumber(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

inline bool SameNumber(DataType type, std::uint16_t a, std::uint16_t b) {
  return SameNumber(From16(type, a), From16(type, b));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_UPDATE_ORACLE_H_
