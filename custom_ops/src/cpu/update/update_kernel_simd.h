// The functions of cpu/update/update_kernel.h, which compute the formulas of keras_mp/update.h
// on contiguous blocks of up to kUpdateBlock elements: FP16, bfloat16 or FP32 gradients,
// FP32 masters and slots, 16-bit weights. They are templates over the vectors of an
// instruction set, `Simd`, compiled once for each.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#ifndef KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_

#include <algorithm>
#include <cstdint>

#include "common/noise.h"
#include "common/update_formulas.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"
#include "cpu/update/remainder_block_simd.h"
#include "cpu/update/slot_block_simd.h"
#include "cpu/update/update_kernel.h"
#include "cpu/update/vector_machine.h"

namespace keras_mp {

template <class Simd, class Format>
struct UpdateBlock {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Element = typename Format::Element;
  using Machine = VectorMachine<Simd>;
  using Formulas = UpdateFormulas<Machine>;
  using FormatGrid = Grid<Simd, Format>;

  static constexpr std::int64_t kPrefetchDistance = kUpdateBlock / 2;

  template <class Body>
  static void ForEach(std::int64_t n, const Body& body) {
    ForEachVector<Simd, Format>(n, body);
  }

  static std::int32_t Unscale(const Element* x, std::int64_t n, float scale, float* to) {
    const typename Formulas::Unscaling unscaled(scale);
    Ints largest = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      // The prefetcher of the processor starts later, and stops at the end of each page.
      __builtin_prefetch(x + i + v * Simd::kWidth + kPrefetchDistance);
      const Float g = unscaled(part.Load(x + i, v));
      part.Store(to + i, v, g);
      const Ints magnitude = reinterpret_cast<Ints>(g) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    });
    std::int32_t most = 0;
    for (int i = 0; i < Simd::kWidth; ++i) most = std::max(most, largest[i]);
    return most;
  }

  static float SumOfSquares(const float* x, std::int64_t n) {
    Float sums[4] = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float element = part.Load(x + i, v);
      sums[v] += element * element;
    });
    return Total(sums);
  }

  static float Total(const Float (&sums)[4]) {
    const Float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0;
    for (int i = 0; i < Simd::kWidth; ++i) total += sum[i];
    return total;
  }

  static Float Nearest(Float master) {
    Element rounded[Simd::kWidth];
    Format::Store(rounded, Formulas::Clip(master, FormatGrid::kLargest));
    return Format::Load(rounded);
  }

  static void SyncMasters(float* master, const Element* weight, std::int64_t n,
                          Rounding rounding) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      const Float m = part.Load(master + i, v);
      part.Store(master + i, v,
                 rounding == Rounding::kNearest
                     ? Formulas::SyncNearest(m, Nearest(m), w)
                     : Formulas::template SyncStochastic<FormatGrid>(m, w));
    });
  }

  static void CastNearest(const float* master, Element* weight, std::int64_t n) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v);
      part.Store(weight + i, v, Formulas::Clip(m, FormatGrid::kLargest));
    });
  }

  static void CastStochastic(const float* master, Element* weight, std::int64_t n,
                             const float* uniforms) {
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v), uniform = part.Load(uniforms + i, v);
      part.Store(weight + i, v,
                 Formulas::template RoundStochastic<FormatGrid>(m, uniform));
    });
  }

  // `first`: the index of master[0], modulo 2^32.
  static void CastWithNoise(const float* master, Element* weight, std::int64_t n,
                            std::uint32_t first, const Noise<Machine>& noise) {
    const typename Machine::Words lanes = LaneNumbers<Simd>() + first;
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const auto index = lanes + static_cast<std::uint32_t>(i + v * Simd::kWidth);
      part.Store(weight + i, v,
                 Formulas::template RoundStochastic<FormatGrid>(
                     part.Load(master + i, v), noise.Uniform(index)));
    });
  }

  static void Clip(const UpdateHyperparameters& u, float* gradient, std::int64_t n) {
    if (!Formulas::Clips(u)) return;
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      part.Store(gradient + i, v, Formulas::Clipped(u, part.Load(gradient + i, v)));
    });
  }

  // A test of kDecays for each vector would take as long as SGD does.
  template <UpdateRule kRule, bool kDecays, bool kHasPowers>
  static void Step(const UpdateHyperparameters& hyperparameters, float* gradient,
                   const float* powers, float* master, float* const* slots,
                   std::int64_t n) {
    constexpr int kSlots = kSlotsOf<kRule>;
    const UpdateHyperparameters u = hyperparameters;
    Clip(u, gradient, n);
    float* to[kMostSlots] = {};
    for (int k = 0; k < kSlots; ++k) to[k] = slots[k];
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float g = part.Load(gradient + i, v);
      Float w = part.Load(master + i, v), s[kMostSlots] = {};
      for (int k = 0; k < kSlots; ++k) s[k] = part.Load(to[k] + i, v);
      Float power;
      if constexpr (kHasPowers) {
        power = part.Load(powers + i, v);
      } else {
        power = Formulas::template Power<kRule>(g);
      }
      Formulas::template Step<kRule>(u, kDecays, g, power, w, s);
      for (int k = 0; k < kSlots; ++k) part.Store(to[k] + i, v, s[k]);
      part.Store(master + i, v, w);
    });
  }

  static void LambSlots(const UpdateHyperparameters& hyperparameters, bool decays,
                        float* gradient, const float* master, float* const* slots,
                        std::int64_t n, float* squares) {
    const UpdateHyperparameters u = hyperparameters;
    Clip(u, gradient, n);
    float *const of_m = slots[0], *const of_v = slots[1];
    Float of_masters[4] = {}, of_directions[4] = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      Float mean = part.Load(of_m + i, v), variance = part.Load(of_v + i, v);
      const Float g = part.Load(gradient + i, v);
      Formulas::StepMoments(u, g, g * g, mean, variance);
      part.Store(of_m + i, v, mean);
      part.Store(of_v + i, v, variance);
      Float w = part.Load(master + i, v);
      if (decays) w = Formulas::Decayed(u, w);
      const Float direction = Formulas::LambDirection(u, mean, variance);
      of_masters[v] += part.Fill(w * w, 0);
      of_directions[v] += part.Fill(direction * direction, 0);
    });
    squares[0] = Total(of_masters);
    squares[1] = Total(of_directions);
  }

  static void LambMasters(const UpdateHyperparameters& hyperparameters, bool decays,
                          float rate, float* master, const float* const* slots,
                          std::int64_t n) {
    const UpdateHyperparameters u = hyperparameters;
    const float *const of_m = slots[0], *const of_v = slots[1];
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      Float w = part.Load(master + i, v);
      if (decays) w = Formulas::Decayed(u, w);
      const Float direction =
          Formulas::LambDirection(u, part.Load(of_m + i, v), part.Load(of_v + i, v));
      part.Store(master + i, v, w - direction * rate);
    });
  }

  static void AdafactorSums(const UpdateHyperparameters& u, const float* gradient,
                            std::int64_t rows, std::int64_t columns, float* of_rows,
                            float* of_columns) {
    const float epsilon = u.epsilon;
    if (columns < Simd::kWidth) {
      // A part of a vector takes longer than its elements one by one.
      for (std::int64_t row = 0; row < rows; ++row, gradient += columns) {
        float sum = 0;
        for (std::int64_t i = 0; i < columns; ++i) {
          const float h = gradient[i] * gradient[i] + epsilon;
          sum += h;
          of_columns[i] += h;
        }
        of_rows[row] = sum;
      }
      return;
    }
    for (std::int64_t row = 0; row < rows; ++row, gradient += columns) {
      Float sums[4] = {};
      ForEach(columns, [&](auto part, int v, std::int64_t i) {
        const Float g = part.Load(gradient + i, v);
        const Float h = g * g + epsilon;
        sums[v] += part.Fill(h, 0);
        part.Store(of_columns + i, v, part.Load(of_columns + i, v) + h);
      });
      of_rows[row] = Total(sums);
    }
  }

  static void AdafactorAverage(const UpdateHyperparameters& hyperparameters,
                               const float* means, std::int64_t n, float* to) {
    const UpdateHyperparameters u = hyperparameters;
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      part.Store(to + i, v,
                 part.Load(to + i, v) * u.beta_2 +
                     part.Load(means + i, v) * u.one_minus_beta_2);
    });
  }

  static void AdafactorProducts(const float* r, float mean_of_r, const float* c,
                                std::int64_t rows, std::int64_t columns,
                                float* variance) {
    if (columns < Simd::kWidth) {
      for (std::int64_t row = 0; row < rows; ++row, variance += columns) {
        const float factor = r[row] / mean_of_r;
        for (std::int64_t i = 0; i < columns; ++i) variance[i] = factor * c[i];
      }
      return;
    }
    for (std::int64_t row = 0; row < rows; ++row, variance += columns) {
      const Float factor = Broadcast<Simd>(r[row] / mean_of_r);
      ForEach(columns, [&](auto part, int v, std::int64_t i) {
        part.Store(variance + i, v, factor * part.Load(c + i, v));
      });
    }
  }

  static float AdafactorDirections(const float* gradient, const float* variance,
                                   std::int64_t n) {
    Float sums[4] = {};
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      const Float direction = Formulas::AdafactorDirection(part.Load(gradient + i, v),
                                                           part.Load(variance + i, v));
      sums[v] += part.Fill(direction * direction, 0);
    });
    return Total(sums);
  }

  static void AdafactorMasters(const UpdateHyperparameters& hyperparameters, bool decays,
                               float rate, const float* gradient, const float* variance,
                               std::int64_t n, float* master) {
    const UpdateHyperparameters u = hyperparameters;
    ForEach(n, [&](auto part, int v, std::int64_t i) {
      Float w = part.Load(master + i, v);
      if (decays) w = Formulas::Decayed(u, w);
      const Float direction = Formulas::AdafactorDirection(part.Load(gradient + i, v),
                                                           part.Load(variance + i, v));
      part.Store(master + i, v, w - direction * rate);
    });
  }
};

// Dispatches to the function of the 16-bit format, of the rule, and of the kind of code.
template <class Simd>
struct UpdateOf {
  using HalfBlock = UpdateBlock<Simd, Half<Simd>>;
  using BfloatBlock = UpdateBlock<Simd, Bfloat16<Simd>>;
  using SingleBlock = UpdateBlock<Simd, Single<Simd>>;
  using HalfRemainders = RemainderBlock<Simd, Half<Simd>>;
  using BfloatRemainders = RemainderBlock<Simd, Bfloat16<Simd>>;

  static std::int32_t Unscale(const void* x, DataType type, std::int64_t n, float scale,
                              float* to) {
    const auto* halves = static_cast<const std::uint16_t*>(x);
    if (type == DataType::kHalf) return HalfBlock::Unscale(halves, n, scale, to);
    if (type == DataType::kBfloat16) return BfloatBlock::Unscale(halves, n, scale, to);
    return SingleBlock::Unscale(static_cast<const float*>(x), n, scale, to);
  }

  static void Stream(const float* from, std::int64_t n, float* to) {
    std::int64_t i = 0;
    if (reinterpret_cast<std::uintptr_t>(to) % sizeof(typename Simd::Float) == 0) {
      for (; i + Simd::kWidth <= n; i += Simd::kWidth) {
        Simd::Stream(to + i, Load<Simd>(from + i));
      }
    }
    std::copy(from + i, from + n, to + i);
  }

  static void SyncMasters(float* master, const std::uint16_t* weight, DataType type,
                          std::int64_t n, Rounding rounding) {
    type == DataType::kHalf ? HalfBlock::SyncMasters(master, weight, n, rounding)
                            : BfloatBlock::SyncMasters(master, weight, n, rounding);
  }

  static void Cast(const float* master, std::uint16_t* weight, DataType type,
                   std::int64_t n, const float* uniforms) {
    if (uniforms == nullptr) {
      type == DataType::kHalf ? HalfBlock::CastNearest(master, weight, n)
                              : BfloatBlock::CastNearest(master, weight, n);
    } else {
      type == DataType::kHalf ? HalfBlock::CastStochastic(master, weight, n, uniforms)
                              : BfloatBlock::CastStochastic(master, weight, n, uniforms);
    }
  }

  static void CastWithNoise(const float* master, std::uint16_t* weight, DataType type,
                            std::int64_t n, std::uint32_t first,
                            const UpdateHyperparameters& u) {
    const Noise<VectorMachine<Simd>> noise(u, kMostSlots);
    type == DataType::kHalf
        ? HalfBlock::CastWithNoise(master, weight, n, first, noise)
        : BfloatBlock::CastWithNoise(master, weight, n, first, noise);
  }

  static void Join(const std::uint16_t* weight, const std::int16_t* remainder,
                   DataType type, std::int64_t n, float* master) {
    type == DataType::kHalf ? HalfRemainders::Join(weight, remainder, n, master)
                            : BfloatRemainders::Join(weight, remainder, n, master);
  }

  static void Split(const float* master, DataType type, std::int64_t n,
                    std::uint16_t* weight, std::int16_t* remainder) {
    type == DataType::kHalf ? HalfRemainders::Split(master, n, weight, remainder)
                            : BfloatRemainders::Split(master, n, weight, remainder);
  }

  static void JoinShort(const std::uint16_t* weight, const std::int8_t* remainder,
                        DataType type, std::int64_t n, float* master) {
    type == DataType::kHalf ? HalfRemainders::Join(weight, remainder, n, master)
                            : BfloatRemainders::Join(weight, remainder, n, master);
  }

  static void SplitShort(const float* master, DataType type, std::int64_t n,
                         std::uint32_t first, const UpdateHyperparameters& u,
                         std::uint16_t* weight, std::int8_t* remainder) {
    const Noise<VectorMachine<Simd>> noise(u, kMostSlots);
    type == DataType::kHalf
        ? HalfRemainders::SplitShort(master, n, first, noise, weight, remainder)
        : BfloatRemainders::SplitShort(master, n, first, noise, weight, remainder);
  }

  // Calls work(SlotBlock{}) for the kind of code.
  template <class Work>
  static void WithBlock(SlotCode code, int bits, const Work& work) {
    if (code == SlotCode::kSigned) {
      bits == 8 ? work(SlotBlock<Simd, SlotCode::kSigned, 8>{})
                : work(SlotBlock<Simd, SlotCode::kSigned, 4>{});
    } else {
      bits == 8 ? work(SlotBlock<Simd, SlotCode::kUnsigned, 8>{})
                : work(SlotBlock<Simd, SlotCode::kUnsigned, 4>{});
    }
  }

  static void Decode(SlotCode code, int bits, const std::uint8_t* codes,
                     const std::uint8_t* exponents, std::int64_t n, float* to) {
    WithBlock(code, bits, [&](auto block) { block.Decode(codes, exponents, n, to); });
  }

  static void Encode(SlotCode code, int bits, const float* x, std::int64_t n,
                     std::uint32_t first, const UpdateHyperparameters& u, int slot,
                     std::uint8_t* codes, std::uint8_t* exponents) {
    const Noise<VectorMachine<Simd>> noise(u, slot);
    WithBlock(code, bits, [&](auto block) {
      block.Encode(x, n, first, noise, codes, exponents);
    });
  }

  static void Step(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
                   bool apply_weight_decay, float* g, const float* powers,
                   float* master, float* const* slots, std::int64_t n) {
    WithRule(rule, [&](auto constant) {
      constexpr UpdateRule kRule = constant.value;
      if constexpr (!NeedsNorms(kRule)) {
        auto* step = StepOf<kRule, false>(apply_weight_decay);
        if constexpr (TakesPowers(kRule)) {
          if (powers) step = StepOf<kRule, true>(apply_weight_decay);
        }
        step(hyperparameters, g, powers, master, slots, n);
      }
    });
  }

  template <UpdateRule kRule, bool kHasPowers>
  static auto* StepOf(bool decays) {
    return decays ? SingleBlock::template Step<kRule, true, kHasPowers>
                  : SingleBlock::template Step<kRule, false, kHasPowers>;
  }
};

template <class Simd>
constexpr UpdateKernel kUpdateKernel = {
    UpdateOf<Simd>::Unscale,     UpdateOf<Simd>::Stream,
    UpdateOf<Simd>::SingleBlock::SumOfSquares,
    UpdateOf<Simd>::SyncMasters, UpdateOf<Simd>::Cast,
    UpdateOf<Simd>::CastWithNoise,
    UpdateOf<Simd>::Join,        UpdateOf<Simd>::Split,
    UpdateOf<Simd>::JoinShort,   UpdateOf<Simd>::SplitShort,
    UpdateOf<Simd>::Decode,      UpdateOf<Simd>::Encode,
    UpdateOf<Simd>::Step,
    UpdateOf<Simd>::SingleBlock::LambSlots,
    UpdateOf<Simd>::SingleBlock::LambMasters,
    UpdateOf<Simd>::SingleBlock::Clip,
    {UpdateOf<Simd>::SingleBlock::AdafactorSums,
     UpdateOf<Simd>::SingleBlock::AdafactorAverage,
     UpdateOf<Simd>::SingleBlock::AdafactorProducts,
     UpdateOf<Simd>::SingleBlock::AdafactorDirections,
     UpdateOf<Simd>::SingleBlock::AdafactorMasters},
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_SIMD_H_
