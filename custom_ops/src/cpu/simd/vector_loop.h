// A row of numbers of any length as vectors.

#ifndef KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_
#define KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_

#include <cstdint>

#include "cpu/simd/simd.h"

namespace keras_mp {

// A few vectors side by side, all of them whole.
template <class Simd, class Format, int kCount>
struct WholeVectors {
  using Float = typename Simd::Float;
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
  Float Fill(Float v, float) const { return v; }
};

// The first numbers of a vector; the others are read as 0, and become what Fill says.
template <class Simd, class Format>
struct PartOfVector {
  using Float = typename Simd::Float;
  static constexpr int kVectors = 1;
  std::int64_t count;

  Float Load(const std::uint16_t* x, int) const {
    return LoadSome<Simd, Format>(x, count);
  }
  void Store(std::uint16_t* to, int, Float v) const {
    StoreSome<Simd, Format>(to, v, count);
  }
  Float Load(const float* x, int) const {
    return LoadSome<Simd, Single<Simd>>(x, count);
  }
  void Store(float* to, int, Float v) const {
    StoreSome<Simd, Single<Simd>>(to, v, count);
  }
  Float Fill(Float v, float rest) const {
    float numbers[Simd::kWidth];
    for (float& number : numbers) number = rest;
    Store(numbers, 0, v);
    return keras_mp::Load<Simd>(numbers);
  }
};

// Calls body(vectors, at) for [0, size) in pieces of up to `kVectors` vectors.
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
  if (at < size) body(PartOfVector<Simd, Format>{size - at}, at);
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_VECTOR_LOOP_H_
