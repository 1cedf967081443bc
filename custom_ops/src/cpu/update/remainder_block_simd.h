// Blocks of masters that are held as a 16-bit weight and a remainder of 16 or 8 bits
// (keras_mp/update.h, MasterPair), on a CPU.

#ifndef KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_
#define KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_

#include <cstdint>

#include "common/noise.h"
#include "common/remainder_formulas.h"
#include "common/update_formulas.h"
#include "cpu/simd/vector_loop.h"
#include "cpu/update/vector_machine.h"

namespace keras_mp {

template <class Simd, class Format>
struct RemainderBlock {
  using Float = typename Simd::Float;
  using Machine = VectorMachine<Simd>;
  using Rules = UpdateFormulas<Machine>;
  using Formulas = RemainderFormulas<Machine, Grid<Simd, Format>>;
  using ShortFormulas = ShortRemainderFormulas<Machine, Grid<Simd, Format>>;

  static void Join(const std::uint16_t* weight, const std::int16_t* remainder,
                   std::int64_t n, float* master) {
    JoinBy<Formulas>(weight, remainder, n, master);
  }

  static void Join(const std::uint16_t* weight, const std::int8_t* remainder,
                   std::int64_t n, float* master) {
    JoinBy<ShortFormulas>(weight, remainder, n, master);
  }

  static void Split(const float* master, std::int64_t n, std::uint16_t* weight,
                    std::int16_t* remainder) {
    ForEachVector<Simd, Format>(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v);
      part.Store(weight + i, v, Rules::Clip(m, Grid<Simd, Format>::kLargest));
      part.Store(remainder + i, v, Formulas::Split(m, part.Load(weight + i, v)));
    });
  }

  // `first`: the index of master[0], modulo 2^32.
  static void SplitShort(const float* master, std::int64_t n, std::uint32_t first,
                         const Noise<Machine>& noise, std::uint16_t* weight,
                         std::int8_t* remainder) {
    const typename Machine::Words lanes = LaneNumbers<Simd>() + first;
    ForEachVector<Simd, Format>(n, [&](auto part, int v, std::int64_t i) {
      const auto index = lanes + static_cast<std::uint32_t>(i + v * Simd::kWidth);
      const Float m = ShortFormulas::Round(part.Load(master + i, v), noise, index);
      const Float nearest = ShortFormulas::OffHalfWay(m, noise, index);
      part.Store(weight + i, v, Rules::Clip(nearest, Grid<Simd, Format>::kLargest));
      part.Store(remainder + i, v, ShortFormulas::Split(m, part.Load(weight + i, v)));
    });
  }

 private:
  template <class FormulasOf, class Number>
  static void JoinBy(const std::uint16_t* weight, const Number* remainder, std::int64_t n,
                     float* master) {
    ForEachVector<Simd, Format>(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      part.Store(master + i, v, FormulasOf::Join(w, part.Load(remainder + i, v)));
    });
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_
