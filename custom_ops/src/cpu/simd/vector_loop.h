// Loops over an array of any length: whole vectors, then a tail.

#ifndef KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_
#define KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_

#include <cstdint>

#include "cpu/simd/simd.h"

namespace keras_mp {

// kCount adjacent whole vectors. Elements of 16 bits are of the Format, or signed
// integers, and those of 8 bits signed integers.
template <class Simd, class Format, int kCount>
struct WholeVectors {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  static constexpr int kVectors = kCount;

  Float Load(const std::uint16_t* x, int i) const {
    return Format::Load(x + i * Simd::kWidth);
  }
  void Store(std::uint16_t* to, int i, Float v) const {
    Format::Store(to + i * Simd::kWidth, v);
  }
  Float Load(const float* x, int i) const {
    return keras_mp::Load<Simd>(x + i * Simd::kWidth);
  }
  void Store(float* to, int i, Float v) const {
    keras_mp::Store<Simd>(to + i * Simd::kWidth, v);
  }
  Ints Load(const std::int16_t* x, int i) const {
    return Int16<Simd>::Load(x + i * Simd::kWidth);
  }
  void Store(std::int16_t* to, int i, Ints v) const {
    Int16<Simd>::Store(to + i * Simd::kWidth, v);
  }
  Ints Load(const std::int8_t* x, int i) const {
    return Int8<Simd>::Load(x + i * Simd::kWidth);
  }
  void Store(std::int8_t* to, int i, Ints v) const {
    Int8<Simd>::Store(to + i * Simd::kWidth, v);
  }
  Float Fill(Float v, float) const { return v; }
};

// The tail: the first `count` < kWidth lanes of a vector. The other lanes are read as 0,
// and not written. Fill gives them another value for a reduction.
template <class Simd, class Format>
struct TailVector {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  static constexpr int kVectors = 1;
  std::int64_t count;

  Float Load(const std::uint16_t* x, int) const {
    return LoadPartial<Simd, Format>(x, count);
  }
  void Store(std::uint16_t* to, int, Float v) const {
    StorePartial<Simd, Format>(to, v, count);
  }
  Float Load(const float* x, int) const {
    return LoadPartial<Simd, Single<Simd>>(x, count);
  }
  void Store(float* to, int, Float v) const {
    StorePartial<Simd, Single<Simd>>(to, v, count);
  }
  Ints Load(const std::int16_t* x, int) const {
    return LoadPartial<Simd, Int16<Simd>>(x, count);
  }
  void Store(std::int16_t* to, int, Ints v) const {
    StorePartial<Simd, Int16<Simd>>(to, v, count);
  }
  Ints Load(const std::int8_t* x, int) const {
    return LoadPartial<Simd, Int8<Simd>>(x, count);
  }
  void Store(std::int8_t* to, int, Ints v) const {
    StorePartial<Simd, Int8<Simd>>(to, v, count);
  }
  Float Fill(Float v, float rest) const {
    Ints lane;
#pragma GCC unroll 16
    for (int i = 0; i < Simd::kWidth; ++i) lane[i] = i;
    return lane < static_cast<int>(count) ? v : Broadcast<Simd>(rest);
  }
};

// Calls body(vectors, at) for consecutive blocks of [0, size): kVectors whole vectors as
// long as they fit, then single ones, then the tail.
template <class Simd, class Format, int kVectors, class Body>
static inline void ForVectors(std::int64_t size, const Body& body) {
  constexpr std::int64_t kWidth = Simd::kWidth;
  std::int64_t at = 0;
  for (; at + kVectors * kWidth <= size; at += kVectors * kWidth) {
    body(WholeVectors<Simd, Format, kVectors>{}, at);
  }
  for (; at + kWidth <= size; at += kWidth) {
    body(WholeVectors<Simd, Format, 1>{}, at);
  }
  if (at < size) body(TailVector<Simd, Format>{size - at}, at);
}

// Calls body(vectors, v, at) for the v-th of up to four vectors of elements from `at` on,
// until `size` elements are done.
template <class Simd, class Format, class Body>
static inline void ForEachVector(std::int64_t size, const Body& body) {
  ForVectors<Simd, Format, 4>(size, [&](auto part, std::int64_t at) {
#pragma GCC unroll 4
    for (int v = 0; v < decltype(part)::kVectors; ++v) body(part, v, at);
  });
}

// As ForVectors, for a body that may compute an element twice: in place of the tail, which
// is copied element by element, the last whole vector overlaps the one before.
template <class Simd, class Format, int kVectors, class Body>
static inline void ForCoveringVectors(std::int64_t size, const Body& body) {
  constexpr std::int64_t kWidth = Simd::kWidth;
  const std::int64_t whole = size - size % kWidth;
  ForVectors<Simd, Format, kVectors>(size < kWidth ? size : whole, body);
  if (size > kWidth && size > whole) {
    body(WholeVectors<Simd, Format, 1>{}, size - kWidth);
  }
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_
