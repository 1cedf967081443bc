// Blocks of masters that are held as a 16-bit weight and a remainder (keras_mp/update.h,
// MasterPair), on a CPU.

#ifndef KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_
#define KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_

#include <cstdint>

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

  static void Join(const std::uint16_t* weight, const std::int16_t* remainder,
                   std::int64_t n, float* master) {
    ForEachVector<Simd, Format>(n, [&](auto part, int v, std::int64_t i) {
      const Float w = part.Load(weight + i, v);
      part.Store(master + i, v, Formulas::Join(w, part.Load(remainder + i, v)));
    });
  }

  static void Split(const float* master, std::int64_t n, std::uint16_t* weight,
                    std::int16_t* remainder) {
    ForEachVector<Simd, Format>(n, [&](auto part, int v, std::int64_t i) {
      const Float m = part.Load(master + i, v);
      part.Store(weight + i, v, Rules::Clip(m, Grid<Simd, Format>::kLargest));
      part.Store(remainder + i, v, Formulas::Split(m, part.Load(weight + i, v)));
    });
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_REMAINDER_BLOCK_SIMD_H_
