// A master as its 16-bit weight and a remainder: keras_mp/update.h, MasterPair. `Machine`
// is that of common/update_formulas.h, `Grid` the format of the weight.

#ifndef KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_

#include "common/half.h"
#include "common/host_device.h"

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

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
