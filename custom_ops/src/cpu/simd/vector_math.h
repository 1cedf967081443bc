// exp, tanh and the activations in FP32, a vector at a time. The coefficients are
// least-squares fits of the relative error, computed for this file.

#ifndef KERAS_MP_SRC_CPU_SIMD_VECTOR_MATH_H_
#define KERAS_MP_SRC_CPU_SIMD_VECTOR_MATH_H_

#include <cstddef>
#include <cstdint>

#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd>
struct VectorMath {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;

  template <std::size_t kCount>
  static Float Polynomial(const float (&coefficients)[kCount], Float x) {
    Float value = Broadcast<Simd>(coefficients[kCount - 1]);
    for (std::size_t i = kCount - 1; i-- > 0;) value = value * x + coefficients[i];
    return value;
  }

  static Float Abs(Float x) {
    return reinterpret_cast<Float>(reinterpret_cast<Ints>(x) & 0x7fffffff);
  }

  static Float CopySign(Float magnitude, Float sign) {
    const Ints bit = reinterpret_cast<Ints>(sign) & static_cast<int>(0x80000000u);
    return reinterpret_cast<Float>(reinterpret_cast<Ints>(magnitude) | bit);
  }

  // e^x within 2^-22 of itself for x <= 88; 0 below -87.
  static Float Exp(Float x) {
    static constexpr float kCoefficients[] = {0x1p0f,        0x1p0f,        0x1.fffffap-2f,
                                              0x1.5553fep-3f, 0x1.555906p-5f, 0x1.1273a4p-7f,
                                              0x1.6a7fb0p-10f};
    const Float small = Broadcast<Simd>(-87.0f), large = Broadcast<Simd>(88.0f);
    const Float inside = Simd::Max(small, Simd::Min(large, x));  // NaN stays
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const Float shifted = inside * 0x1.715476p+0f + 0x1.8p23f;
    const Float n = shifted - 0x1.8p23f;
    const Float rest = inside - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    const Ints scale = (reinterpret_cast<Ints>(shifted) + 127) << 23;
    const Float value = Polynomial(kCoefficients, rest) * reinterpret_cast<Float>(scale);
    return x < small ? Float{} : value;
  }

  static Float Relu(Float x) { return Simd::Max(Float{}, x); }  // NaN stays

  static Float Sigmoid(Float x) { return 1.0f / (1.0f + Exp(-x)); }

  static Float Tanh(Float x) {
    // tanh(x) = x - x^3 p(x^2) near 0, where the other formula would cancel.
    static constexpr float kCoefficients[] = {0x1.555552p-2f, -0x1.110e0cp-3f,
                                              0x1.b9224ap-5f, -0x1.57ea26p-6f,
                                              0x1.8f07b8p-8f};
    const Float magnitude = Abs(x);
    const Float square = x * x;
    const Float near = x - x * square * Polynomial(kCoefficients, square);
    const Float far = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
    return magnitude < Broadcast<Simd>(0.625f) ? near : CopySign(far, x);
  }

  // x Phi(x), with the distribution function Phi of the normal distribution.
  static Float Gelu(Float x) { return x * NormalCdf(x, Bell(x)); }

  // The derivative of Gelu: Phi(x) + x Phi'(x), within 2^-20.
  static Float GeluSlope(Float x) {
    const Float bell = Bell(x);
    return NormalCdf(x, bell) + x * (0x1.988454p-2f * bell);
  }

 private:
  static constexpr float kRootOfHalf = 0x1.6a09e6p-1f;

  // e^(-x^2 / 2)
  static Float Bell(Float x) {
    const Float z = Abs(x) * kRootOfHalf;
    return Exp(-z * z);
  }

  // Phi(x), for the `bell` of x: Phi(-x) = erfc(x / sqrt(2)) / 2, and
  // erfc(z) = e^(-z^2) t p(t), t = 1 / (1 + 0.4 z), for z > 0.
  static Float NormalCdf(Float x, Float bell) {
    static constexpr float kCoefficients[] = {
        0x1.ce4288p-3f, 0x1.cc7910p-3f,  0x1.b9ff88p-3f, 0x1.013f86p-3f,
        0x1.224238p-2f, -0x1.382bbep-2f, 0x1.246feap-1f, -0x1.082578p-1f,
        0x1.a3cd44p-3f, -0x1.f8f52cp-6f};
    const Float t = 1.0f / (1.0f + 0.4f * (Abs(x) * kRootOfHalf));
    const Float tail = 0.5f * bell * t * Polynomial(kCoefficients, t);
    return x < Float{} ? tail : 1.0f - tail;
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_VECTOR_MATH_H_
