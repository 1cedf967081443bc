// The CUDA kernel of a step with masters and slots in fewer bytes (keras_mp/update.h,
// MasterPair and Slot): that of kernels.cuh, which says how to build and test it, between
// expanding and compressing in registers. The eight threads of a group of a slot exchange
// its largest number.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_COMPRESSED_KERNEL_CUH_
#define KERAS_MP_SRC_CUDA_UPDATE_COMPRESSED_KERNEL_CUH_

#include <cstdint>

#include "common/noise.h"
#include "common/remainder_formulas.h"
#include "common/slot_formulas.h"
#include "cuda/update/kernels.cuh"

namespace keras_mp::cuda {

static_assert(kSlotGroup == 8 * kFour && kChunkSize % kSlotGroup == 0,
              "a group belongs to eight neighbouring threads");

// SlotCodeOf as a constant, since device code cannot call a host function.
template <UpdateRule kRule, int kSlot>
constexpr SlotCode kSlotCodeOf = SlotCodeOf(kRule, kSlot);

__device__ __forceinline__ void ReadMaster(const MasterPair& pair, Span span,
                                           Rounding rounding, float (&master)[kFour]) {
  if (pair.master != nullptr) {
    Read(pair.master, span, master);
    if (pair.weight != nullptr) SyncMasters(pair, span, rounding, master);
    return;
  }
  Bits16 weight[kFour], remainder[kFour] = {};
  unsigned char short_remainder[kFour] = {};
  Read(pair.weight, span, weight);
  const bool has_remainder = pair.remainder != nullptr;
  const bool has_short_remainder = pair.short_remainder != nullptr;
  if (has_remainder) Read(reinterpret_cast<const Bits16*>(pair.remainder), span, remainder);
  if (has_short_remainder) {
    Read(reinterpret_cast<const unsigned char*>(pair.short_remainder), span,
         short_remainder);
  }
  InFormat(pair.type, [&](auto format) {
    using Remainder = RemainderFormulas<ThreadMachine, GridOf<decltype(format)>>;
    using ShortRemainder =
        ShortRemainderFormulas<ThreadMachine, GridOf<decltype(format)>>;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const float w = Widen(format, weight[i]);
      const auto r = static_cast<std::int16_t>(remainder[i]);
      const auto q = static_cast<std::int8_t>(short_remainder[i]);
      master[i] = has_remainder         ? Remainder::Join(w, r)
                  : has_short_remainder ? ShortRemainder::Join(w, q)
                                        : w;
    }
  });
}

__device__ __forceinline__ void WriteMaster(const MasterPair& pair, Span span,
                                            const float* uniforms,
                                            const Noise<ThreadMachine>& noise,
                                            const float (&master)[kFour]) {
  if (pair.master != nullptr) {
    Write(pair.master, span, master);
    if (pair.weight != nullptr) Cast(pair, span, uniforms, master);
    return;
  }
  Bits16 weight[kFour], remainder[kFour];
  unsigned char short_remainder[kFour];
  const bool has_remainder = pair.remainder != nullptr;
  const bool has_short_remainder = pair.short_remainder != nullptr;
  InFormat(pair.type, [&](auto format) {
    using Grid = GridOf<decltype(format)>;
    using Remainder = RemainderFormulas<ThreadMachine, Grid>;
    using ShortRemainder = ShortRemainderFormulas<ThreadMachine, Grid>;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      if (has_remainder) {
        weight[i] = RoundNearest(format, master[i]);
        const int r = Remainder::Split(master[i], Widen(format, weight[i]));
        remainder[i] = static_cast<Bits16>(r < -32768 ? -32768 : (r > 32767 ? 32767 : r));
        continue;
      }
      const auto index = static_cast<unsigned>(span.at + i);
      if (has_short_remainder) {
        const float m = ShortRemainder::Round(master[i], noise, index);
        weight[i] = RoundNearest(format, ShortRemainder::OffHalfWay(m, noise, index));
        short_remainder[i] = static_cast<unsigned char>(
            ShortRemainder::Split(m, Widen(format, weight[i])));
      } else {
        const float uniform = noise.Uniform(index);
        weight[i] =
            Round(format, Formulas::RoundStochastic<Grid>(master[i], uniform));
      }
    }
  });
  Write(pair.weight, span, weight);
  if (has_remainder) Write(reinterpret_cast<Bits16*>(pair.remainder), span, remainder);
  if (has_short_remainder) {
    Write(reinterpret_cast<unsigned char*>(pair.short_remainder), span, short_remainder);
  }
}

// The pairs of the codes of a thread, which are in the low bits of the first four threads
// of a group, and in the high bits of the others.
__device__ __forceinline__ bool HasLowBits(Span span) {
  return span.at % kSlotGroup < kSlotGroup / 2;
}

__device__ __forceinline__ Span PairsOf(Span span, bool any) {
  const Index group = span.at / kSlotGroup;
  return {group * (kSlotGroup / 2) + span.at % (kSlotGroup / 2), any ? kFour : 0};
}

__device__ __forceinline__ void ReadPairs(const unsigned char* pairs, Span span,
                                          unsigned char (&codes)[kFour]) {
  Read(pairs, PairsOf(span, span.count > 0), codes);
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    codes[i] = HasLowBits(span) ? codes[i] & 15 : codes[i] >> 4;
  }
}

// A group that is not full has all pairs. All lanes of the warp have to call it.
__device__ __forceinline__ void WritePairs(unsigned char* pairs, Span span,
                                           const unsigned char (&codes)[kFour]) {
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    own |= (i < span.count ? unsigned{codes[i]} : 0u) << 8 * i;
  }
  const unsigned others = BitsOf(ShuffleXor(keras_mp::FromBits(own), 4));
  unsigned char both[kFour];
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    both[i] = static_cast<unsigned char>((own | others << 4) >> 8 * i);
  }
  const bool has_group = LargestOfEight(span.count > 0 ? 1 : 0) > 0;
  if (HasLowBits(span)) Write(pairs, PairsOf(span, has_group), both);
}

template <SlotCode kCode, int kBits>
__device__ __forceinline__ void DecodeFour(const Slot& slot, Span span,
                                           float (&to)[kFour]) {
  unsigned char codes[kFour];
  if constexpr (kBits == 8) {
    Read(static_cast<const unsigned char*>(slot.codes), span, codes);
  } else {
    ReadPairs(slot.pairs, span, codes);
  }
  const SlotFormulas<ThreadMachine, kCode, kBits> formulas(
      span.count > 0 ? slot.exponents[span.at / kSlotGroup] : 0);
#pragma unroll
  for (int i = 0; i < kFour; ++i) to[i] = formulas.Decode(codes[i]);
}

template <SlotCode kCode, int kBits>
__device__ __forceinline__ void EncodeFour(const Slot& slot, Span span,
                                           const Noise<ThreadMachine>& noise,
                                           const float (&x)[kFour]) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const unsigned magnitude = i < span.count ? BitsOf(x[i]) & 0x7fffffffu : 0;
    largest = magnitude > largest ? magnitude : largest;
  }
  using Formulas = SlotFormulas<ThreadMachine, kCode, kBits>;
  const unsigned exponent = Formulas::ExponentOf(LargestOfEight(largest));
  const Formulas formulas(exponent);
  unsigned char codes[kFour];
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const unsigned random = noise.Bits(static_cast<unsigned>(span.at + i));
    codes[i] = static_cast<unsigned char>(formulas.Encode(x[i], random));
  }
  if constexpr (kBits == 8) {
    Write(static_cast<unsigned char*>(slot.codes), span, codes);
  } else {
    WritePairs(slot.pairs, span, codes);
  }
  if (span.count > 0 && span.at % kSlotGroup == 0) {
    slot.exponents[span.at / kSlotGroup] = static_cast<unsigned char>(exponent);
  }
}

template <UpdateRule kRule, int kSlot>
__device__ __forceinline__ void ReadSlot(const Parameter& parameter, Span span,
                                         float (&slots)[kMostSlots][kFour]) {
  constexpr SlotCode kCode = kSlotCodeOf<kRule, kSlot>;
  const Slot& slot = parameter.slots[kSlot];
  if constexpr (kCode != SlotCode::kNone) {
    if (slot.codes != nullptr) {
      DecodeFour<kCode, 8>(slot, span, slots[kSlot]);
      return;
    }
    if (slot.pairs != nullptr) {
      DecodeFour<kCode, 4>(slot, span, slots[kSlot]);
      return;
    }
  }
  if constexpr (kSlot < kSlotsOf<kRule>) Read(slot.values, span, slots[kSlot]);
}

template <UpdateRule kRule, int kSlot>
__device__ __forceinline__ void WriteSlot(const Parameter& parameter, Span span,
                                          const UpdateHyperparameters& hyperparameters,
                                          const float (&slots)[kMostSlots][kFour]) {
  constexpr SlotCode kCode = kSlotCodeOf<kRule, kSlot>;
  const Slot& slot = parameter.slots[kSlot];
  if constexpr (kCode != SlotCode::kNone) {
    const Noise<ThreadMachine> noise(hyperparameters, kSlot);
    if (slot.codes != nullptr) {
      EncodeFour<kCode, 8>(slot, span, noise, slots[kSlot]);
      return;
    }
    if (slot.pairs != nullptr) {
      EncodeFour<kCode, 4>(slot, span, noise, slots[kSlot]);
      return;
    }
  }
  if constexpr (kSlot < kSlotsOf<kRule>) Write(slot.values, span, slots[kSlot]);
}

template <UpdateRule kRule>
__global__ void __launch_bounds__(kThreads)
    CompressedUpdateKernel(const UpdateArguments<Parameter> a) {
  if (a.finite != nullptr && !*a.finite) return;
  const UpdateHyperparameters hyperparameters = *a.hyperparameters;
  const Formulas::Unscaling unscaled(hyperparameters.scale);
  const Noise<ThreadMachine> noise_of_weights(hyperparameters, kMostSlots);
  ForSpans</*kTogether=*/true>(a.list, [&](const Parameter& parameter, Span span) {
    float g[kFour], w[kFour], slots[kMostSlots][kFour] = {};
    ReadGradient(parameter.gradient, span, g);
    ReadMaster(parameter.pair, span, a.rounding, w);
    ReadSlot<kRule, 0>(parameter, span, slots);
    ReadSlot<kRule, 1>(parameter, span, slots);
    ReadSlot<kRule, 2>(parameter, span, slots);
    StepFour<kRule>(hyperparameters, parameter.apply_weight_decay, unscaled, g, w, slots);
    WriteSlot<kRule, 0>(parameter, span, hyperparameters, slots);
    WriteSlot<kRule, 1>(parameter, span, hyperparameters, slots);
    WriteSlot<kRule, 2>(parameter, span, hyperparameters, slots);
    WriteMaster(parameter.pair, span, parameter.uniforms, noise_of_weights, w);
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_COMPRESSED_KERNEL_CUH_
