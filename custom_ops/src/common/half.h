// Scalar conversions between FP32 and the bits of the 16-bit formats.

#ifndef KERAS_MP_SRC_COMMON_HALF_H_
#define KERAS_MP_SRC_COMMON_HALF_H_

#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace keras_mp {

// `static`: each translation unit keeps its own copy, compiled for its own instruction
// set. A shared one could be the copy that an older processor cannot run.
static KERAS_MP_HOST_DEVICE std::uint32_t BitsOf(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static KERAS_MP_HOST_DEVICE float FromBits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static KERAS_MP_HOST_DEVICE float HalfToFloat(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {  // 0 or subnormal: a multiple of 2^-24, exact in FP32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return FromBits(BitsOf(magnitude) | sign);
  }
  if (exponent == 0x1f) {  // inf, or a quiet NaN
    const std::uint32_t quiet = fraction ? 0x400000u : 0u;
    return FromBits(sign | 0x7f800000u | quiet | fraction << 13);
  }
  return FromBits(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds to nearest even; 65520, half an ulp above the largest finite value, and beyond
// become inf.
static KERAS_MP_HOST_DEVICE std::uint16_t FloatToHalf(float x) {
  const std::uint32_t bits = BitsOf(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // a quiet NaN with the top of its payload
    return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: FP32 itself rounds to 2^-24
    const float shifted = FromBits(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (BitsOf(shifted) - BitsOf(0.5f)));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  const std::uint32_t rounded = magnitude + 0xfffu + odd;
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

static KERAS_MP_HOST_DEVICE float Bfloat16ToFloat(std::uint16_t x) {
  return FromBits(static_cast<std::uint32_t>(x) << 16);
}

static KERAS_MP_HOST_DEVICE std::uint16_t FloatToBfloat16(float x) {
  const std::uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_HALF_H_
