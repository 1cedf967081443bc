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

inline int SmallestNormalExponent(SlotCode code) {
  return code == SlotCode::kSigned ? -14 : -30;
}

// The number t of a code without its sign.
inline double ScaledNumber(SlotCode code, int magnitude) {
  const int smallest = SmallestNormalExponent(code);
  if (magnitude < 8) return std::ldexp(magnitude, smallest - 3);
  return std::ldexp(8 + magnitude % 8, magnitude / 8 - 1 + smallest - 3);
}

inline float Decoded(SlotCode code, std::uint8_t bits, std::uint8_t exponent) {
  const bool is_signed = code == SlotCode::kSigned;
  if (exponent == 0) return is_signed && bits & 0x80 ? -0.0f : 0.0f;
  const double magnitude = std::ldexp(
      ScaledNumber(code, is_signed ? bits & 0x7f : bits), exponent - 127);
  return static_cast<float>(is_signed && bits & 0x80 ? -magnitude : magnitude);
}

inline std::uint8_t GroupExponent(const float* x, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return 253;
    largest = std::max(largest, std::abs(double{x[i]}));
  }
  if (largest < 0x1p-126) return 0;
  const int exponent = std::ilogb(largest) + 127;
  const bool is_above = std::ldexp(largest, 127 - exponent) > 1.875;
  return static_cast<std::uint8_t>(std::min(exponent + is_above, 253));
}

// `random`: 32 random bits.
inline std::uint8_t Encoded(SlotCode code, float x, std::uint8_t exponent,
                            std::uint32_t random) {
  if (exponent == 0) return 0;
  const double scaled = std::ldexp(std::abs(double{x}), 127 - exponent);
  const double t = scaled < 1.875 ? scaled : 1.875;
  const int smallest = SmallestNormalExponent(code);
  const bool is_small = t < std::ldexp(1.0, smallest);
  // The place of t on the grid of codes, in units of 2^-20 codes.
  const int power = is_small ? smallest : std::ilogb(t);
  const double place = std::nearbyint(std::ldexp(t, 23 - power));
  const std::int64_t below = is_small ? 0 : std::int64_t{power - smallest} << 23;
  auto magnitude =
      (below + static_cast<std::int64_t>(place) + (random >> 12)) >> 20;
  const bool is_signed = code == SlotCode::kSigned;
  if (!is_signed && x > 0) magnitude = std::max<std::int64_t>(magnitude, 1);
  const bool is_negative = is_signed && x < 0 && magnitude > 0;
  return static_cast<std::uint8_t>(magnitude | (is_negative ? 0x80 : 0));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_COMPRESSED_ORACLE_H_
