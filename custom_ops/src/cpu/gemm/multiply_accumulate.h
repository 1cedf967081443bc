// What the blocks of a product hold, and what a step of a sum does with it.
//
// A *term* is what a step takes from a row of A or a column of B: one number, widened
// to FP32, or two bfloat16 numbers that are neighbours along k. A *source* says how the
// numbers lie in memory: in the 16-bit format, or as FP32, to be rounded to it.

#ifndef KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_
#define KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/simd/simd.h"

namespace keras_mp {

// A step of one number: an FP32 multiply-add.
template <class Simd>
struct MultiplyAdd {
  using Term = float;
  using Vector = typename Simd::Float;
  static constexpr int kNumbers = 1;  // along k, in a term

  static Vector Repeat(Term term) { return Set<Simd>(term); }
  static Vector Load(const Term* terms) { return keras_mp::Load<Simd>(terms); }
  static void Accumulate(typename Simd::Float& sum, Vector a, Vector b) {
    sum += a * b;
  }
};

// A step of two numbers: the dot product of the instruction set. The terms of a vector
// are moved as FP32 numbers, and never computed with.
template <class Simd>
struct DotProduct {
  using Term = std::uint32_t;
  using Vector = typename Simd::Float;
  using Words = typename Simd::Words;
  static constexpr int kNumbers = 2;

  static Vector Repeat(Term term) {
    return reinterpret_cast<Vector>(term - Words{});
  }
  static Vector Load(const Term* terms) {
    Vector v;
    std::memcpy(&v, terms, sizeof v);
    return v;
  }
  static void Accumulate(typename Simd::Float& sum, Vector a, Vector b) {
    sum = Simd::DotBfloat16(sum, a, b);
  }
};

// Numbers as they are.
template <class Simd, class Format>
struct StoredSource {
  using Element = typename Format::Element;

  // kWidth numbers as FP32, and as bits in the lower half of words.
  static typename Simd::Float Load(const Element* x) { return Format::Load(x); }
  static typename Simd::Words LoadBits(const Element* x) {
    typename Simd::Shorts shorts;
    std::memcpy(&shorts, x, sizeof shorts);
    return __builtin_convertvector(shorts, typename Simd::Words);
  }
  // 2 * kWidth numbers, two to a word.
  static typename Simd::Float LoadPairs(const Element* x) {
    typename Simd::Float pairs;
    std::memcpy(&pairs, x, sizeof pairs);
    return pairs;
  }
};

// FP32 numbers, rounded to `Format`.
template <class Simd, class Format>
struct RoundedSource {
  using Element = float;

  static typename Simd::Float Load(const Element* x) {
    std::uint16_t rounded[Simd::kWidth];
    Format::Store(rounded, keras_mp::Load<Simd>(x));
    return Format::Load(rounded);
  }
  static typename Simd::Words LoadBits(const Element* x) {
    std::uint16_t rounded[Simd::kWidth];
    Format::Store(rounded, keras_mp::Load<Simd>(x));
    return StoredSource<Simd, Format>::LoadBits(rounded);
  }
  static typename Simd::Float LoadPairs(const Element* x) {
    std::uint16_t rounded[2 * Simd::kWidth];
    Format::Store(rounded, keras_mp::Load<Simd>(x));
    Format::Store(rounded + Simd::kWidth, keras_mp::Load<Simd>(x + Simd::kWidth));
    return StoredSource<Simd, Format>::LoadPairs(rounded);
  }
};

// Reads vectors of terms: kWidth of one row of A or column of B, whose numbers are
// neighbours in memory, or one of each of kWidth neighbours.
template <class Simd, class Step, class Source>
struct Reader {
  using Element = typename Source::Element;
  using Vector = typename Step::Vector;
  static constexpr int kWidth = Simd::kWidth, kNumbers = Step::kNumbers;

  static Vector Along(const Element* x) {
    if constexpr (kNumbers == 1) {
      return Source::Load(x);
    } else {
      return Source::LoadPairs(x);
    }
  }

  // `next` is the distance to the next number of a term.
  static Vector Across(const Element* x, std::int64_t next) {
    if constexpr (kNumbers == 1) {
      return Source::Load(x);
    } else {
      return reinterpret_cast<Vector>(Source::LoadBits(x) |
                                      Source::LoadBits(x + next) << 16);
    }
  }

  // The same for the first `count` numbers, and zeros beyond.
  static Vector AlongSome(const Element* x, std::int64_t count) {
    Element all[kNumbers * kWidth] = {};
    std::memcpy(all, x, count * sizeof *x);
    return Along(all);
  }

  // The same for `count` neighbours with `numbers` numbers each, and zeros beyond.
  static Vector AcrossSome(const Element* x, std::int64_t next, std::int64_t count,
                           std::int64_t numbers) {
    Element all[kNumbers * kWidth] = {};
    for (std::int64_t q = 0; q < numbers; ++q) {
      std::memcpy(all + q * kWidth, x + q * next, count * sizeof *x);
    }
    return Across(all, kWidth);
  }
};

// The step that an instruction set has for a format.
template <class Simd, class Format, class = void>
struct StepFor {
  using Type = MultiplyAdd<Simd>;
};
template <class Simd>
struct StepFor<Simd, Bfloat16<Simd>, std::void_t<decltype(&Simd::DotBfloat16)>> {
  using Type = DotProduct<Simd>;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_
