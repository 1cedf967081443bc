// The formulas of the update step, for the vectors of a CPU and the numbers of a CUDA
// thread alike, so that both give the same bits. `Machine` has the type Float, one number
// or several, and
//
//   Sqrt(x)
//   Truncate(x)   for |x| < 2^31 or NaN
//   Exponent(x)   x with a fraction of 1: a power of two, 0, or inf
//   Differ(x, y)  whether the bits of two numbers differ

#ifndef KERAS_MP_SRC_UPDATE_FORMULAS_H_
#define KERAS_MP_SRC_UPDATE_FORMULAS_H_

#include "half.h"
#include "host_device.h"
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

  // Moves w by the gradient g, and the slots m and v as far as the rule has them.
  template <UpdateRule kRule>
  static KERAS_MP_HOST_DEVICE void Step(const UpdateNumbers& u, bool decays, Float g,
                                        Float& w, Float& m, Float& v) {
    if (u.clip_value != 0) g = Clip(g, u.clip_value);
    if (u.clip_factor != 1) g *= u.clip_factor;
    if (decays) w -= w * u.weight_decay * u.rate;
    if constexpr (kRule == UpdateRule::kSgd) {
      w -= g * u.rate;
    } else if constexpr (kRule == UpdateRule::kAdam) {
      m += (g - m) * u.one_minus_beta_1;
      v += (g * g - v) * u.one_minus_beta_2;
      w -= m * u.alpha / (Machine::Sqrt(v) + u.epsilon);
    } else {
      m = m * u.momentum - g * u.rate;
      w += kRule == UpdateRule::kMomentum ? m : m * u.momentum - g * u.rate;
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_UPDATE_FORMULAS_H_
