// One step along k of a sum of products, and how its operands are read.
//
//   MultiplyAdd:          sum += a[k] * b[k]                         in FP32
//   DotProduct:           sum += a[k] * b[k] + a[k + 1] * b[k + 1]   of bfloat16 pairs
//   TileRegisterProduct:  as DotProduct, a square of steps at a time; of FP16, too, whose
//                         elements are sums of two of bfloat16
//
// A *packed element* is what a step takes from a row of A or a column of B: one element
// widened to FP32, or two 16-bit elements that are neighbours along k. A *source* reads
// the matrix in memory: its format, or FP32 that is rounded to that format.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_
#define KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/ceil_div.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// A step of one element along k: an FP32 multiply-add.
template <class Simd>
struct MultiplyAdd {
  using Packed = float;
  using Vector = typename Simd::Float;
  static constexpr int kElements = 1;  // along k, in a packed element
  // Packed blocks are filled with zeros to such multiples of rows of A and of steps.
  static constexpr int kRowMultiple = 1, kStepMultiple = 1;
  static constexpr int kParts = 1;  // numbers whose sum is an element
  // Whether rows of A are read where they lie, if they are contiguous along k.
  static constexpr bool kReadsUnpacked = false;
  struct Scope {};  // lives while a thread takes steps

  static Vector Broadcast(Packed x) { return keras_mp::Broadcast<Simd>(x); }
  static Vector Load(const Packed* x) { return keras_mp::Load<Simd>(x); }
  static void Accumulate(typename Simd::Float& sum, Vector a, Vector b) {
    sum += a * b;
  }
};

// A step of two elements along k: the instruction set's dot product of pairs. Vectors of
// pairs have the type of FP32 vectors, but are only moved and never computed with.
template <class Simd>
struct DotProduct {
  using Packed = std::uint32_t;
  using Vector = typename Simd::Float;
  using Words = typename Simd::Words;
  static constexpr int kElements = 2;
  static constexpr int kRowMultiple = 1, kStepMultiple = 1, kParts = 1;
  static constexpr bool kReadsUnpacked = false;
  struct Scope {};

  static Vector Broadcast(Packed pair) {
    return reinterpret_cast<Vector>(pair - Words{});
  }
  static Vector Load(const Packed* pairs) {
    Vector v;
    std::memcpy(&v, pairs, sizeof v);
    return v;
  }
  static void Accumulate(typename Simd::Float& sum, Vector a, Vector b) {
    sum = Simd::DotBfloat16(sum, a, b);
  }
};

// Steps of two elements along k, of which the micro-kernel takes a square at a time, in
// the tile registers of `Simd` (cpu/gemm/tile_register_micro_kernel.h). An element is the
// sum of kParts numbers of `Format`, and a product that of all pairs of them.
template <class Simd, class Format, int kPartsOfElement = 1>
struct TileRegisterProduct {
  using Packed = std::uint32_t;
  using Vector = typename Simd::Float;
  static constexpr int kElements = 2;
  static constexpr int kRowMultiple = Simd::kWidth, kStepMultiple = Simd::kWidth;
  static constexpr int kParts = kPartsOfElement;
  static constexpr bool kReadsUnpacked = kParts == 1;
  struct Scope {
    Scope() { Simd::TileRegisters::Configure(); }
    ~Scope() { Simd::TileRegisters::Release(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
};

// The steps of a packed block of `depth` elements along k.
template <class Step>
std::int64_t StepsOf(std::int64_t depth) {
  return RoundUp(CeilDiv(depth, Step::kElements), Step::kStepMultiple);
}

// Reads elements that are stored in `Format`.
template <class Simd, class Format>
struct StoredSource {
  using Element = typename Format::Element;

  // kWidth elements, as FP32 and as bits in the lower halves of 32-bit words.
  static typename Simd::Float Load(const Element* x) { return Format::Load(x); }
  static typename Simd::Words LoadBits(const Element* x) {
    typename Simd::Shorts shorts;
    std::memcpy(&shorts, x, sizeof shorts);
    return Simd::Widen(shorts);
  }
  // 2 * kWidth elements, two to a 32-bit word.
  static typename Simd::Float LoadPairs(const Element* x) {
    typename Simd::Float pairs;
    std::memcpy(&pairs, x, sizeof pairs);
    return pairs;
  }
};

// Reads FP32 elements and rounds them to `Format`.
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

// Reads one of the two numbers of bfloat16 whose sum is an element that `Source` reads: the
// last bits, which come first, and the first 8. The sum is exact in FP16, of 11 bits, and
// within 2^-16 of an element in FP32 from 2^-110 on. Of NaN and inf one of the two is NaN.
template <class Simd, class Source, int kPart>
struct PartSource {
  using Element = typename Source::Element;
  using Float = typename Simd::Float;
  using Words = typename Simd::Words;

  static Words LoadBits(const Element* x) {
    constexpr std::uint32_t kHalfOfLast = kPart == 0 ? 0x8000 : 0;
    return (reinterpret_cast<Words>(Part(Source::Load(x))) + kHalfOfLast) >> 16;
  }
  static Float LoadPairs(const Element* x) {
    return Simd::PairsOfBfloat16(Part(Source::Load(x)),
                                 Part(Source::Load(x + Simd::kWidth)));
  }

 private:
  static Float Part(Float x) {
    const Float first = reinterpret_cast<Float>(reinterpret_cast<Words>(x) & 0xffff0000u);
    return kPart == 0 ? x - first : first;
  }
};

// What reads a part of the elements that `Source` reads.
template <class Simd, class Step, class Source, int kPart>
using PartOf = std::conditional_t<Step::kParts == 1, Source,
                                  PartSource<Simd, Source, kPart>>;

// Reads vectors of kWidth packed elements, from a matrix that is contiguous along k
// (Along: successive steps of one row of A or column of B) or across k (Across: one step
// of kWidth neighbouring rows of A or columns of B).
template <class Simd, class Step, class Source>
struct Reader {
  using Element = typename Source::Element;
  using Vector = typename Step::Vector;
  static constexpr int kWidth = Simd::kWidth, kElements = Step::kElements;

  static Vector Along(const Element* x) {
    if constexpr (kElements == 1) {
      return Source::Load(x);
    } else {
      return Source::LoadPairs(x);
    }
  }

  // `next` is the stride along k.
  static Vector Across(const Element* x, std::int64_t next) {
    if constexpr (kElements == 1) {
      return Source::Load(x);
    } else {
      return reinterpret_cast<Vector>(Source::LoadBits(x) |
                                      Source::LoadBits(x + next) << 16);
    }
  }

  // Along for the first `count` elements, with zeros beyond.
  static Vector AlongSome(const Element* x, std::int64_t count) {
    Element all[kElements * kWidth] = {};
    std::memcpy(all, x, count * sizeof *x);
    return Along(all);
  }

  // Across for `count` neighbours and `depth` elements along k, with zeros beyond.
  static Vector AcrossSome(const Element* x, std::int64_t next, std::int64_t count,
                           std::int64_t depth) {
    Element all[kElements * kWidth] = {};
    for (std::int64_t q = 0; q < depth; ++q) {
      std::memcpy(all + q * kWidth, x + q * next, count * sizeof *x);
    }
    return Across(all, kWidth);
  }
};

// The step for a format in vectors: DotProduct where the instruction set has one, else
// MultiplyAdd.
template <class Simd, class Format, class = void>
struct VectorStepFor {
  using Type = MultiplyAdd<Simd>;
};
template <class Simd>
struct VectorStepFor<Simd, Bfloat16<Simd>, std::void_t<decltype(&Simd::DotBfloat16)>> {
  using Type = DotProduct<Simd>;
};

// Whether the instruction set multiplies a format in tile registers.
template <class Simd, class Format, class = void>
struct HasTileProduct : std::false_type {};
template <class Simd, class Format>
struct HasTileProduct<
    Simd, Format,
    std::void_t<decltype(Simd::TileRegisters::template MultiplyAdd<0, 4, 6>(Format()))>>
    : std::true_type {};

// The step for a format where A and B are packed: TileRegisterProduct where the
// instruction set has tile registers for it, or FP16 elements become two numbers of
// bfloat16 there, else that in vectors.
template <class Simd, class Format>
struct StepFor {
  using Type = std::conditional_t<HasTileProduct<Simd, Format>::value,
                                  TileRegisterProduct<Simd, Format>,
                                  typename VectorStepFor<Simd, Format>::Type>;
};
template <class Simd>
struct StepFor<Simd, Half<Simd>> {
  using InVectors = typename VectorStepFor<Simd, Half<Simd>>::Type;
  using InParts = std::conditional_t<HasTileProduct<Simd, Bfloat16<Simd>>::value,
                                     TileRegisterProduct<Simd, Bfloat16<Simd>, 2>,
                                     InVectors>;
  using Type = std::conditional_t<HasTileProduct<Simd, Half<Simd>>::value,
                                  TileRegisterProduct<Simd, Half<Simd>>, InParts>;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_MULTIPLY_ACCUMULATE_H_
