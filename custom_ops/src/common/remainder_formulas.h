// A master as its 16-bit weight and a remainder: keras_mp/update.h, MasterPair. `Machine`
// is that of common/update_formulas.h, `Grid` the format of the weight.

#ifndef KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_

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
    // Beyond the bounds it is that of a subnormal weight, which something else overwrote.
    const Ints bounded = Clamp(remainder, Grid::kLeastRemainder, Grid::kMostRemainder);
    const Float moved = Machine::FromBits(bits + Machine::AsWords(bounded));
    const Float joined = IsNotFinite(bits) ? weight : moved;
    if constexpr (Grid::kFixedUpTo > 0) {
      // Without a remainder -0 stays.
      const Float fixed = Machine::ToFloat(remainder) * kFixedUnit + weight;
      return IsFixed(weight) ? (remainder == 0 ? weight : fixed) : joined;
    }
    return joined;
  }

  // The remainder of a master, of which `weight` is the rounding.
  static KERAS_MP_HOST_DEVICE Ints Split(Float master, Float weight) {
    const Words bits = Machine::Bits(weight);
    const Ints difference = Machine::AsInts(Machine::Bits(master) - bits);
    Ints remainder = Clamp(difference, Grid::kLeastRemainder, Grid::kMostRemainder);
    if constexpr (Grid::kFixedUpTo > 0) {
      const Ints units = ToNearest((master - weight) * (1 / kFixedUnit));
      remainder = IsFixed(weight) ? Clamp(units, -32768, 32767) : remainder;
    }
    return IsNotFinite(bits) ? Ints{} : remainder;
  }

 private:
  static constexpr float kFixedUnit = 0x1p-40f;

  static KERAS_MP_HOST_DEVICE Ints Clamp(Ints x, int least, int most) {
    const Ints low = Ints{} + least, high = Ints{} + most;
    const Ints raised = x < low ? low : x;
    return raised > high ? high : raised;
  }

  static KERAS_MP_HOST_DEVICE auto IsNotFinite(Words bits) {
    return (bits & 0x7f800000u) == 0x7f800000u;
  }

  static KERAS_MP_HOST_DEVICE auto IsFixed(Float weight) {
    return (weight <= Grid::kFixedUpTo) & (weight >= -Grid::kFixedUpTo);
  }

  // x rounded to nearest even, for |x| <= 2^22: 3 * 2^22 has an ulp of 1.
  static KERAS_MP_HOST_DEVICE Ints ToNearest(Float x) {
    const Float shifted = x + 0x3p22f;
    return Machine::AsInts(Machine::Bits(shifted) - 0x4b400000u);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_REMAINDER_FORMULAS_H_
