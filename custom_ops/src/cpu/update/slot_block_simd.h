// Expands and compresses blocks of a slot (keras_mp/update.h, Slot) on a CPU, a group at a
// time.

#ifndef KERAS_MP_SRC_CPU_UPDATE_SLOT_BLOCK_SIMD_H_
#define KERAS_MP_SRC_CPU_UPDATE_SLOT_BLOCK_SIMD_H_

#include <algorithm>
#include <cstdint>

#include "common/half.h"
#include "common/noise.h"
#include "common/slot_formulas.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/update/vector_machine.h"

namespace keras_mp {

template <class Simd, SlotCode kCode>
class SlotBlock {
 public:
  static void Decode(const std::uint8_t* codes, const std::uint8_t* exponents,
                     std::int64_t n, float* to) {
    std::int64_t at = 0;
    for (; at + kSlotGroup <= n; at += kSlotGroup) {
      DecodeGroup(codes + at, *exponents++, to + at);
    }
    if (at == n) return;
    std::uint8_t last_codes[kSlotGroup] = {};
    float last[kSlotGroup];
    std::copy(codes + at, codes + n, last_codes);
    DecodeGroup(last_codes, *exponents, last);
    std::copy_n(last, n - at, to + at);
  }

  // `first`: the index of x[0], modulo 2^32.
  static void Encode(const float* x, std::int64_t n, std::uint32_t first,
                     const Noise<VectorMachine<Simd>>& noise, std::uint8_t* codes,
                     std::uint8_t* exponents) {
    Words index = LaneNumbers<Simd>() + first;
    std::int64_t at = 0;
    for (; at + kSlotGroup <= n; at += kSlotGroup) {
      *exponents++ = EncodeGroup(x + at, index, noise, codes + at);
      index += static_cast<std::uint32_t>(kSlotGroup);
    }
    if (at == n) return;
    float last[kSlotGroup] = {};
    std::uint8_t last_codes[kSlotGroup];
    std::copy(x + at, x + n, last);
    *exponents = EncodeGroup(last, index, noise, last_codes);
    std::copy_n(last_codes, n - at, codes + at);
  }

 private:
  using Machine = VectorMachine<Simd>;
  using Formulas = SlotFormulas<Machine, kCode>;
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Words = typename Simd::Words;

  static constexpr int kVectors = kSlotGroup / Simd::kWidth;

  static void DecodeGroup(const std::uint8_t* codes, std::uint8_t exponent, float* to) {
    const Formulas formulas(exponent);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Words code = Simd::LoadBytes(codes + v * Simd::kWidth);
      Store<Simd>(to + v * Simd::kWidth, formulas.Decode(code));
    }
  }

  // Returns the exponent.
  static std::uint8_t EncodeGroup(const float* x, Words index,
                                  const Noise<Machine>& noise, std::uint8_t* codes) {
    Ints largest = {};  // bits of the magnitude
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Words bits = Machine::Bits(Load<Simd>(x + v * Simd::kWidth));
      const Ints magnitude = Machine::AsInts(bits & 0x7fffffffu);
      largest = magnitude > largest ? magnitude : largest;
    }
    const Ints infinity = Ints{} + 0x7f800000;
    largest = largest < infinity ? largest : infinity;  // NaN
    const Float numbers = Machine::FromBits(Machine::AsWords(largest));
    const std::uint32_t exponent =
        ExponentOfGroup(keras_mp::BitsOf(Lanes<Simd>::Max(numbers)));
    const Formulas formulas(exponent);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Words random =
          noise.Bits(index + static_cast<std::uint32_t>(v * Simd::kWidth));
      Simd::StoreBytes(codes + v * Simd::kWidth,
                       formulas.Encode(Load<Simd>(x + v * Simd::kWidth), random));
    }
    return static_cast<std::uint8_t>(exponent);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_SLOT_BLOCK_SIMD_H_
