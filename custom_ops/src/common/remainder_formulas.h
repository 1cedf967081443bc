// A master as its 16-bit weight and a remainder of 16 or 8 bits: keras_mp/update.h,
// MasterPair. `Machine` is that of common/update_formulas.h, `Grid` the format of the
// weight.

#ifndef KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_

#include "common/half.h"
#include "common/host_device.h"
#include "common/noise.h"
#include "common/update_formulas.h"

namespace keras_mp {

template <class Machine, class Grid>
struct RemainderFormulas {
  using Float = typename Machine::Float;
  using Ints = typename Machine::Ints;
  using Words = typename Machine::Words;

  // The master.
  static KERAS_MP_HOST_DEVICE Float Join(Float weight, Ints remainder) {
    const Words bits = Machine::Bits(weight);
    const Ints magnitude = Magnitude(bits);
    const Float moved = Machine::FromBits(bits + Machine::AsWords(Bounded(remainder)));
    const Float joined = IsNotFinite(magnitude) ? weight : moved;
    if constexpr (Grid::kFixedUpTo > 0) {
      // Without a remainder -0 stays.
      const Float fixed = Machine::ToFloat(remainder) * kFixedUnit + weight;
      return IsFixed(magnitude) ? (remainder == 0 ? weight : fixed) : joined;
    }
    return joined;
  }

  // The remainder of a master, of which `weight` is the rounding, before it saturates to
  // 16 bits.
  static KERAS_MP_HOST_DEVICE Ints Split(Float master, Float weight) {
    const Words bits = Machine::Bits(weight);
    const Ints magnitude = Magnitude(bits);
    Ints remainder = Bounded(Machine::AsInts(Machine::Bits(master) - bits));
    if constexpr (Grid::kFixedUpTo > 0) {
      const Ints units = ToNearest((master - weight) * (1 / kFixedUnit));
      remainder = IsFixed(magnitude) ? units : remainder;
    }
    return IsNotFinite(magnitude) ? Ints{} : remainder;
  }

  // Whether the remainder of a weight is a fixed-point number.
  static KERAS_MP_HOST_DEVICE auto IsFixed(Float weight) {
    return IsFixed(Magnitude(Machine::Bits(weight)));
  }

 private:
  static constexpr float kFixedUnit = 0x1p-40f;

  // Beyond the bounds of FP16 lie the remainders of subnormal weights, which something
  // else overwrote, and those of masters beyond 65520. All 16 bits are within those of
  // bfloat16.
  static KERAS_MP_HOST_DEVICE Ints Bounded(Ints remainder) {
    if constexpr (Grid::kMostRemainder < 32767) {
      const Ints low = Ints{} + Grid::kLeastRemainder, high = Ints{} + Grid::kMostRemainder;
      const Ints raised = remainder < low ? low : remainder;
      return raised > high ? high : raised;
    }
    return remainder;
  }

  static KERAS_MP_HOST_DEVICE Ints Magnitude(Words bits) {
    return Machine::AsInts(bits & 0x7fffffffu);
  }

  static KERAS_MP_HOST_DEVICE auto IsNotFinite(Ints magnitude) {
    return magnitude >= 0x7f800000;
  }

  static KERAS_MP_HOST_DEVICE auto IsFixed(Ints magnitude) {
    return magnitude <= static_cast<int>(BitsOf(Grid::kFixedUpTo));
  }

  // x rounded to nearest even, for |x| <= 2^22: 3 * 2^22 has an ulp of 1.
  static KERAS_MP_HOST_DEVICE Ints ToNearest(Float x) {
    const Float shifted = x + 0x3p22f;
    return Machine::AsInts(Machine::Bits(shifted) - 0x4b400000u);
  }
};

// A remainder of 8 bits stands for one of 16 bits, a multiple of 2^8, or of 2^5 where
// that is not fixed-point in FP16.
template <class Machine, class Grid>
struct ShortRemainderFormulas {
  using Float = typename Machine::Float;
  using Ints = typename Machine::Ints;
  using Words = typename Machine::Words;

  static KERAS_MP_HOST_DEVICE Float Join(Float weight, Ints remainder) {
    if constexpr (Grid::kFixedUpTo > 0) {
      const Ints fixed = remainder * (1 << 8), moved = remainder * (1 << 5);
      return Long::Join(weight, Long::IsFixed(weight) ? fixed : moved);
    }
    return Long::Join(weight, remainder * (1 << 8));
  }

  // The master rounded to 24 bits, stochastically.
  static KERAS_MP_HOST_DEVICE Float Round(Float master, const Noise<Machine>& noise,
                                          Words index) {
    return Formulas::template RoundStochastic<typename Grid::Masters>(
        master, noise.Uniform(index));
  }

  // A number whose nearest weight is that of a master of 24 bits: the master, which moves
  // to a random side where it is half-way between two weights.
  static KERAS_MP_HOST_DEVICE Float OffHalfWay(Float master, const Noise<Machine>& noise,
                                               Words index) {
    const Words bit = noise.Bits(index) & 1u;
    return master * (bit == 0u ? Float{} + 0x1.fffffcp-1f : Float{} + 0x1.000002p0f);
  }

  // The remainder of a master of 24 bits and its weight. Half-way to another weight it is
  // a unit nearer to its own.
  static KERAS_MP_HOST_DEVICE Ints Split(Float master, Float weight) {
    const Ints remainder = Long::Split(master, weight);
    Ints units = remainder >> 8;
    if constexpr (Grid::kFixedUpTo > 0) {
      units = Long::IsFixed(weight) ? units : remainder >> 5;
    }
    const Ints most = Ints{} + 127;
    units = units > most ? most : units;
    return units < -most ? -most : units;
  }

 private:
  using Long = RemainderFormulas<Machine, Grid>;
  using Formulas = UpdateFormulas<Machine>;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
