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

// `codes` are those of 8 bits, or the pairs.
template <class Simd, SlotCode kCode, int kBits>
class SlotBlock {
 public:
  static void Decode(const std::uint8_t* codes, const std::uint8_t* exponents,
                     std::int64_t n, float* to) {
    std::int64_t at = 0;
    for (; at + kSlotGroup <= n; at += kSlotGroup, codes += kBytes) {
      DecodeGroup(codes, *exponents++, to + at);
    }
    if (at == n) return;
    std::uint8_t last_codes[kBytes] = {};
    float last[kSlotGroup];
    std::copy_n(codes, BytesOf(n - at), last_codes);
    DecodeGroup(last_codes, *exponents, last);
    std::copy_n(last, n - at, to + at);
  }

  // `first`: the index of x[0], modulo 2^32.
  static void Encode(const float* x, std::int64_t n, std::uint32_t first,
                     const Noise<VectorMachine<Simd>>& noise, std::uint8_t* codes,
                     std::uint8_t* exponents) {
    Words index = LaneNumbers<Simd>() + first;
    std::int64_t at = 0;
    for (; at + kSlotGroup <= n; at += kSlotGroup, codes += kBytes) {
      *exponents++ = EncodeGroup(x + at, index, noise, codes);
      index += static_cast<std::uint32_t>(kSlotGroup);
    }
    if (at == n) return;
    float last[kSlotGroup] = {};
    std::uint8_t last_codes[kBytes];
    std::copy(x + at, x + n, last);
    *exponents = EncodeGroup(last, index, noise, last_codes);
    std::copy_n(last_codes, BytesOf(n - at), codes);
  }

 private:
  using Machine = VectorMachine<Simd>;
  using Formulas = SlotFormulas<Machine, kCode, kBits>;
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Words = typename Simd::Words;

  static constexpr int kVectors = kSlotGroup / Simd::kWidth;
  static constexpr std::int64_t kBytes = kSlotGroup * kBits / 8;

  // Of a group of n elements.
  static constexpr std::int64_t BytesOf(std::int64_t n) { return kBits == 8 ? n : kBytes; }

  static void DecodeGroup(const std::uint8_t* codes, std::uint8_t exponent, float* to) {
    const Formulas formulas(exponent);
    if constexpr (kBits == 8) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Words code = Simd::LoadBytes(codes + v * Simd::kWidth);
        Store<Simd>(to + v * Simd::kWidth, formulas.Decode(code));
      }
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors / 2; ++v) {
        const Words both = Simd::LoadBytes(codes + v * Simd::kWidth);
        float* const low = to + v * Simd::kWidth;
        Store<Simd>(low, formulas.Decode(both & 15u));
        Store<Simd>(low + kSlotGroup / 2, formulas.Decode(both >> 4));
      }
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
        Formulas::ExponentOf(keras_mp::BitsOf(Lanes<Simd>::Max(numbers)));
    const Formulas formulas(exponent);
    const auto code_of = [&](int v) {
      const auto at = static_cast<std::uint32_t>(v * Simd::kWidth);
      return formulas.Encode(Load<Simd>(x + at), noise.Bits(index + at));
    };
    if constexpr (kBits == 8) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        Simd::StoreBytes(codes + v * Simd::kWidth, code_of(v));
      }
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors / 2; ++v) {
        Simd::StoreBytes(codes + v * Simd::kWidth,
                         code_of(v) | code_of(v + kVectors / 2) << 4);
      }
    }
    return static_cast<std::uint8_t>(exponent);
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_SLOT_BLOCK_SIMD_H_
