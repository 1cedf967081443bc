// The compressed forms of masters and slots in update.h, on scalars, in double and in
// integers.

#ifndef KERAS_MP_TESTS_COMMON_COMPRESSED_ORACLE_H_
#define KERAS_MP_TESTS_COMMON_COMPRESSED_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/fixture.h"
#include "keras_mp/update.h"

namespace keras_mp {

// Whether a remainder of the weight is a multiple of 2^-40.
inline bool HasFixedRemainder(DataType type, float weight) {
  return type == DataType::kHalf && std::abs(weight) <= 0x1p-14f;
}

// The least and the most that a remainder counts for a weight that is not fixed.
inline std::int32_t Bounded(DataType type, std::int64_t remainder) {
  const bool is_half = type == DataType::kHalf;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(
      remainder, is_half ? -4096 : -32768, is_half ? 4096 : 32767));
}

inline float JoinedMaster(DataType type, std::uint16_t weight, std::int16_t remainder) {
  const float w = From16(type, weight);
  if (!std::isfinite(w) || remainder == 0) return w;
  if (!HasFixedRemainder(type, w)) {
    return FromBits(BitsOf(w) + static_cast<std::uint32_t>(Bounded(type, remainder)));
  }
  return static_cast<float>(w + std::ldexp(1.0 * remainder, -40));
}

inline std::int16_t RemainderOf(DataType type, float master, std::uint16_t weight) {
  const float w = From16(type, weight);
  if (!std::isfinite(w)) return 0;
  if (!HasFixedRemainder(type, w)) {
    const auto difference = std::int64_t{BitsOf(master)} - std::int64_t{BitsOf(w)};
    return static_cast<std::int16_t>(Bounded(type, difference));
  }
  const double units = std::nearbyint(std::ldexp(double{master} - double{w}, 40));
  return static_cast<std::int16_t>(std::clamp(units, -32768.0, 32767.0));
}

// How many of the smallest steps of a 16-bit remainder one of 8 bits has.
inline int ShortUnit(DataType type, float weight) {
  return type == DataType::kHalf && !HasFixedRemainder(type, weight) ? 32 : 256;
}

inline float JoinedShort(DataType type, std::uint16_t weight, std::int8_t remainder) {
  const int unit = ShortUnit(type, From16(type, weight));
  return JoinedMaster(type, weight, static_cast<std::int16_t>(remainder * unit));
}

// The unit in the last place of x, with `bits` of fraction from 2^`least` on.
inline double UnitOf(double x, int least, int bits) {
  return std::ldexp(1.0, std::max(x == 0 ? least : std::ilogb(x), least) - bits);
}

struct ShortPair {
  std::uint16_t weight;
  std::int8_t remainder;
};

// A master rounded to 24 bits, as its weight and remainder. `random`: 32 random bits.
inline ShortPair SplitShort(DataType type, float master, std::uint32_t random) {
  if (std::isnan(master)) return {To16(type, master), 0};
  const bool is_half = type == DataType::kHalf;
  const double most = is_half ? 65504 + 127 * 0x1p-3 : 0x1.fep127 + 127 * 0x1p112;
  const double limited = std::clamp<double>(master, -most, most);
  const double unit = is_half ? UnitOf(limited, -14, 18) : UnitOf(limited, -110, 15);
  const double places = limited / unit, below = std::floor(places);
  const bool goes_up = std::ldexp(random >> 8, -24) < places - below;
  const double rounded = std::copysign((below + goes_up) * unit, below + goes_up);
  const double ulp = is_half ? UnitOf(rounded, -14, 10) : UnitOf(rounded, -119, 7);
  const double in_ulps = std::abs(rounded) / ulp, floor = std::floor(in_ulps);
  double nearest = std::nearbyint(in_ulps);
  if (in_ulps - floor == 0.5) nearest = floor + random % 2;
  const auto w = static_cast<float>(
      std::min(nearest * ulp, is_half ? 65504.0 : 0x1.fep127));
  const float weight = std::copysign(w, static_cast<float>(rounded));
  const double difference =
      HasFixedRemainder(type, weight)
          ? std::ldexp(rounded - weight, 40)
          : 1.0 * BitsOf(static_cast<float>(rounded)) - 1.0 * BitsOf(weight);
  const double q = std::clamp(difference / ShortUnit(type, weight), -127.0, 127.0);
  return {To16(type, weight), static_cast<std::int8_t>(q)};
}

// The 32 random bits of an element in a stream of a step.
inline std::uint32_t RandomBits(const UpdateHyperparameters& u, std::int64_t index,
                                int stream) {
  const auto noise = static_cast<std::uint32_t>(u.noise_high * 65536.0 + u.noise_low);
  std::uint32_t x = static_cast<std::uint32_t>(index) + noise +
                    static_cast<std::uint32_t>(stream) * 0x9e3779b9u;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

inline float UniformOf(const UpdateHyperparameters& u, std::int64_t index) {
  return static_cast<float>(std::ldexp(RandomBits(u, index, kMostSlots) >> 8, -24));
}

// What a code of `bits` bits is: the exponent of its smallest normal number and of its
// steps below, the largest number, the sign bit, and what the code of 0 bits counts.
struct CodeFacts {
  int smallest, fraction_bits;
  double most;
  int sign, first;
};

inline CodeFacts FactsOf(SlotCode code, int bits) {
  const bool is_signed = code == SlotCode::kSigned;
  if (bits == 8) return {is_signed ? -14 : -30, 3, 1.875, is_signed ? 0x80 : 0, 0};
  return is_signed ? CodeFacts{-2, 1, 1.5, 8, 0} : CodeFacts{-7, 1, 1, 0, 1};
}

inline float Decoded(SlotCode code, int bits, int number, std::uint8_t exponent) {
  const CodeFacts facts = FactsOf(code, bits);
  const bool is_negative = (number & facts.sign) != 0;
  if (exponent == 0) return is_negative ? -0.0f : 0.0f;
  const int magnitude = (number & ~facts.sign) + facts.first;
  const int steps = 1 << facts.fraction_bits;
  const int unit = exponent - 127 + facts.smallest - facts.fraction_bits;
  const double x = magnitude < steps
                       ? std::ldexp(magnitude, unit)
                       : std::ldexp(steps + magnitude % steps, magnitude / steps - 1 + unit);
  return static_cast<float>(is_negative ? -x : x);
}

inline std::uint8_t GroupExponent(SlotCode code, int bits, const float* x,
                                  std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return 253;
    largest = std::max(largest, std::abs(double{x[i]}));
  }
  if (largest < 0x1p-126) return 0;
  const int exponent = std::ilogb(largest) + 127;
  const bool is_above =
      std::ldexp(largest, 127 - exponent) > FactsOf(code, bits).most;
  return static_cast<std::uint8_t>(std::min(exponent + is_above, 253));
}

// `random`: 32 random bits.
inline int Encoded(SlotCode code, int bits, float x, std::uint8_t exponent,
                   std::uint32_t random) {
  if (exponent == 0) return 0;
  const CodeFacts facts = FactsOf(code, bits);
  const double scaled = std::ldexp(std::abs(double{x}), 127 - exponent);
  const double t = scaled < facts.most ? scaled : facts.most;
  const bool is_small = t < std::ldexp(1.0, facts.smallest);
  // The place of t on the grid of codes, in units of 2^-dropped codes.
  const int dropped = 23 - facts.fraction_bits;
  const int power = is_small ? facts.smallest : std::ilogb(t);
  const double place = std::nearbyint(std::ldexp(t, 23 - power));
  const std::int64_t below = is_small ? 0 : std::int64_t{power - facts.smallest} << 23;
  auto magnitude = static_cast<int>(
      (below + static_cast<std::int64_t>(place) + (random >> (32 - dropped))) >> dropped);
  const bool is_signed = code == SlotCode::kSigned;
  if (!is_signed && x > 0) magnitude = std::max(magnitude, 1);
  magnitude = std::max(magnitude - facts.first, 0);
  return magnitude | (x < 0 && magnitude > 0 ? facts.sign : 0);
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_COMPRESSED_ORACLE_H_
