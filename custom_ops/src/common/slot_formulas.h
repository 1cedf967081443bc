// The codes of compressed slots: keras_mp/update.h, Slot. `Machine` is that of
// common/update_formulas.h.

#ifndef KERAS_MP_SRC_COMMON_SLOT_FORMULAS_H_
#define KERAS_MP_SRC_COMMON_SLOT_FORMULAS_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "keras_mp/update.h"

namespace keras_mp {

// The kinds of code, in bits: the bits of c as FP32, f, the bits of the fraction of a, and
// whether the code of 0 bits is 0.
template <SlotCode kCode, int kBits>
struct CodeFormat;
template <>
struct CodeFormat<SlotCode::kSigned, 8> {
  static constexpr std::uint32_t kSmallestNormal = (127 - 14) << 23;
  static constexpr int kFractionBits = 3;
  static constexpr std::uint32_t kMostFraction = 0x700000;
  static constexpr bool kHasZero = true;
};
template <>
struct CodeFormat<SlotCode::kUnsigned, 8> {
  static constexpr std::uint32_t kSmallestNormal = (127 - 30) << 23;
  static constexpr int kFractionBits = 3;
  static constexpr std::uint32_t kMostFraction = 0x700000;
  static constexpr bool kHasZero = true;
};
template <>
struct CodeFormat<SlotCode::kSigned, 4> {
  static constexpr std::uint32_t kSmallestNormal = (127 - 2) << 23;
  static constexpr int kFractionBits = 1;
  static constexpr std::uint32_t kMostFraction = 0x400000;
  static constexpr bool kHasZero = true;
};
template <>
struct CodeFormat<SlotCode::kUnsigned, 4> {
  static constexpr std::uint32_t kSmallestNormal = (127 - 7) << 23;
  static constexpr int kFractionBits = 1;
  static constexpr std::uint32_t kMostFraction = 0;
  static constexpr bool kHasZero = false;
};

// The elements of a group with the exponent e.
template <class Machine, SlotCode kCode, int kBits>
class SlotFormulas {
 public:
  using Float = typename Machine::Float;
  using Words = typename Machine::Words;

  // The exponent of a group with this largest magnitude, given by its bits. One above a
  // times its power of two has the next: it lies between two codes there. Cut off at a, a
  // second moment that grows by 0.1% a step would never get beyond.
  static KERAS_MP_HOST_DEVICE std::uint32_t ExponentOf(std::uint32_t largest) {
    if (largest < 0x00800000u) return 0;
    const std::uint32_t exponent = (largest + (0x7fffffu - Format::kMostFraction)) >> 23;
    return exponent < 253 ? exponent : 253;
  }

  explicit KERAS_MP_HOST_DEVICE SlotFormulas(std::uint32_t e)
      : scale_(keras_mp::FromBits(e << 23)),
        inverse_(e > 0 ? keras_mp::FromBits((254 - e) << 23) : 0),
        least_(kIsSigned || e == 0 ? 0 : 1) {}

  // `noise`: 32 random bits.
  KERAS_MP_HOST_DEVICE Words Encode(Float x, Words noise) const {
    const Float magnitude = Machine::FromBits(Machine::Bits(x) & 0x7fffffffu);
    const Float scaled = magnitude * inverse_, most = Float{} + Most();
    const Float t = Machine::Min(scaled, most);  // NaN becomes the largest
    // Twice a normal number, or c more than a small one, which rounds it to their grid:
    // from c on, the codes are the bits of this one.
    const Float twice = t + t, above = t + smallest_normal();
    const Float shifted = Machine::Max(twice, above);
    const Words dither = (noise >> (32 - kShift)) - kSmallest;
    const Words code = (Machine::Bits(shifted) + dither) >> kShift;
    if constexpr (kIsSigned) {
      const Words sign = x < Float{} ? Words{} + kSign : Words{};
      return code == 0u ? code : code | sign;
    } else if constexpr (!Format::kHasZero) {
      return code == 0u ? code : code - 1u;
    } else {
      const Words least = x > Float{} ? Words{} + least_ : Words{};
      return code < least ? least : code;
    }
  }

  KERAS_MP_HOST_DEVICE Float Decode(Words code) const {
    Words magnitude = code;
    if constexpr (kIsSigned) magnitude = code & (kSign - 1);
    if constexpr (!Format::kHasZero) magnitude = code + 1u;
    const Float shifted = Machine::FromBits((magnitude << kShift) + kSmallest);
    const Float half = shifted * 0.5f, below = shifted - smallest_normal();
    const Float x = Machine::Min(half, below) * scale_;
    if constexpr (!kIsSigned) return x;
    return Machine::FromBits(Machine::Bits(x) | (code & kSign) << (32 - kBits));
  }

 private:
  using Format = CodeFormat<kCode, kBits>;

  static constexpr bool kIsSigned = kCode == SlotCode::kSigned;
  static constexpr std::uint32_t kSmallest = Format::kSmallestNormal;
  static constexpr std::uint32_t kSign = 1u << (kBits - 1);
  static constexpr int kShift = 23 - Format::kFractionBits;

  static KERAS_MP_HOST_DEVICE float Most() {
    return keras_mp::FromBits(0x3f800000u + Format::kMostFraction);
  }

  static KERAS_MP_HOST_DEVICE float smallest_normal() {
    return keras_mp::FromBits(kSmallest);
  }

  float scale_, inverse_;
  std::uint32_t least_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_SLOT_FORMULAS_H_
