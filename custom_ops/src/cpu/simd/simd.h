// Vector loads and stores of every instruction set: `Simd` is Avx2, Avx512, Neon or
// Portable of the headers of these names.

#ifndef KERAS_MP_SRC_CPU_SIMD_SIMD_H_
#define KERAS_MP_SRC_CPU_SIMD_SIMD_H_

#include <cstdint>
#include <cstring>

#include "common/half.h"

namespace keras_mp {

template <class Simd>
static inline typename Simd::Float Load(const float* x) {
  typename Simd::Float v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

template <class Simd>
static inline void Store(float* to, typename Simd::Float v) {
  std::memcpy(to, &v, sizeof v);
}

template <class Simd>
static inline typename Simd::Float Broadcast(float x) {
  return x - typename Simd::Float{};
}

// The formats of elements in memory. Load converts to FP32, Store rounds to nearest even.
template <class Simd>
struct Half {
  using Element = std::uint16_t;
  static typename Simd::Float Load(const Element* x) { return Simd::LoadHalf(x); }
  static void Store(Element* to, typename Simd::Float v) { Simd::StoreHalf(to, v); }
};

template <class Simd>
struct Bfloat16 {
  using Element = std::uint16_t;
  using Shorts = typename Simd::Shorts;
  using Words = typename Simd::Words;

  static typename Simd::Float Load(const Element* x) {
    Shorts shorts;
    std::memcpy(&shorts, x, sizeof shorts);
    return reinterpret_cast<typename Simd::Float>(Simd::Widen(shorts) << 16);
  }

  static void Store(Element* to, typename Simd::Float v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const Words quiet = bits >> 16 | 0x40u;
    const Shorts shorts = Simd::Narrow(v != v ? quiet : rounded);
    std::memcpy(to, &shorts, sizeof shorts);
  }
};

template <class Simd>
struct Single {
  using Element = float;
  static typename Simd::Float Load(const Element* x) {
    return keras_mp::Load<Simd>(x);
  }
  static void Store(Element* to, typename Simd::Float v) {
    keras_mp::Store<Simd>(to, v);
  }
};

// Signed integers, which are vectors of Ints. Int16 saturates; Int8 takes what fits.
template <class Simd>
struct Int8 {
  using Element = std::int8_t;
  using Ints = typename Simd::Ints;
  using Words = typename Simd::Words;
  static Ints Load(const Element* x) {
    const Words bytes = Simd::LoadBytes(reinterpret_cast<const std::uint8_t*>(x));
    return reinterpret_cast<Ints>(bytes << 24) >> 24;
  }
  static void Store(Element* to, Ints v) {
    Simd::StoreBytes(reinterpret_cast<std::uint8_t*>(to),
                     reinterpret_cast<Words>(v) & 0xffu);
  }
};

template <class Simd>
struct Int16 {
  using Element = std::int16_t;
  using Ints = typename Simd::Ints;
  static Ints Load(const Element* x) { return Simd::LoadInt16(x); }
  static void Store(Element* to, Ints v) { Simd::StoreInt16(to, v); }
};

// Reads (the rest as 0) or writes the first `count` < kWidth elements of a vector.
template <class Simd, class Format>
static inline auto LoadPartial(const typename Format::Element* x, std::int64_t count) {
  typename Format::Element all[Simd::kWidth] = {};
  std::memcpy(all, x, count * sizeof *x);
  return Format::Load(all);
}

template <class Simd, class Format>
static inline void StorePartial(typename Format::Element* to,
                                decltype(Format::Load(to)) v, std::int64_t count) {
  typename Format::Element all[Simd::kWidth];
  Format::Store(all, v);
  std::memcpy(to, all, count * sizeof *to);
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_SIMD_H_
