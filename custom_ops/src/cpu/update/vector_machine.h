// The operations on vectors that the formulas of the update step in src/common are written
// in: the `Machine` of common/update_formulas.h for an instruction set.

#ifndef KERAS_MP_SRC_CPU_UPDATE_VECTOR_MACHINE_H_
#define KERAS_MP_SRC_CPU_UPDATE_VECTOR_MACHINE_H_

#include "common/update_formulas.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd>
struct VectorMachine {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Words = typename Simd::Words;

  static Float Sqrt(Float x) { return Simd::Sqrt(x); }
  static Float Min(Float x, Float y) { return Simd::Min(x, y); }
  static Float Max(Float x, Float y) { return Simd::Max(x, y); }
  static Float Truncate(Float x) {
    const Float whole = ToFloat(__builtin_convertvector(x, Ints));
    return x == x ? whole : x;
  }
  static Float Exponent(Float x) { return FromBits(Bits(x) & 0x7f800000u); }
  static Ints Differ(Float x, Float y) { return Bits(x) != Bits(y); }
  static Words Bits(Float x) { return reinterpret_cast<Words>(x); }
  static Float FromBits(Words bits) { return reinterpret_cast<Float>(bits); }
  static Ints AsInts(Words x) { return reinterpret_cast<Ints>(x); }
  static Words AsWords(Ints x) { return reinterpret_cast<Words>(x); }
  static Float ToFloat(Ints x) { return __builtin_convertvector(x, Float); }
};

template <class Simd, class Format>
struct Grid;
template <class Simd>
struct Grid<Simd, Half<Simd>> : HalfGrid {};
template <class Simd>
struct Grid<Simd, Bfloat16<Simd>> : Bfloat16Grid {};

// 0, 1, 2 ...
template <class Simd>
static inline typename Simd::Words LaneNumbers() {
  typename Simd::Words lanes;
#pragma GCC unroll 16
  for (int i = 0; i < Simd::kWidth; ++i) lanes[i] = i;
  return lanes;
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_VECTOR_MACHINE_H_
