// The tolerance of a product compared with double precision: one rounding of the output,
// plus the bound of keras_mp/gemm.h on the error of the FP32 sum, plus 2^-22 of the
// summands and of the result of the epilogue for its few FP32 roundings.

#ifndef KERAS_MP_TESTS_CUDA_GEMM_TOLERANCE_H_
#define KERAS_MP_TESTS_CUDA_GEMM_TOLERANCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "keras_mp/gemm.h"

namespace keras_mp {

inline double Activated(double x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return x <= 0 ? 0 : x;
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kNone:
      break;
  }
  return x;
}

// How the machine rounds FP32 sums: the factor of k * 2^-24 * sum |a||b| in the bound.
enum class SumRounding { kNearest = 1, kTensorCore = 3 };

// Half the unit in the last place of x in the type.
inline double HalfUlp(double x, DataType type) {
  const int digits = type == DataType::kHalf ? 11 : type == DataType::kBfloat16 ? 8 : 24;
  const int smallest = type == DataType::kHalf       ? -24
                       : type == DataType::kBfloat16 ? -133
                                                     : -149;
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - digits, smallest) - 1);
}

// The largest finite number of the type. Numbers from half an ulp above it on round to
// inf.
inline double Largest(DataType type) {
  return type == DataType::kHalf       ? 65504.0
         : type == DataType::kBfloat16 ? 0x1.fep127
                                       : 0x1.fffffep127;
}

// Whether `got` is right. `product` is alpha * A * B and `magnitude` alpha * |A| * |B|.
inline bool IsRight(double got, double product, double magnitude, double bias,
                    std::int64_t k, const Gemm& gemm, SumRounding rounding) {
  const double exact = Activated(product + bias, gemm.activation);
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got);
  if (std::isinf(exact)) return got == exact;
  // No activation has a derivative above 1.13.
  const double computed =
      1.13 * static_cast<int>(rounding) * static_cast<double>(k) * magnitude * 0x1p-24 +
      0x1p-22 * (std::abs(product) + std::abs(bias) + std::abs(exact));
  const double largest = Largest(gemm.output);
  if (std::isinf(got)) {
    return std::signbit(got) == std::signbit(exact) &&
           std::abs(exact) + computed >= largest + HalfUlp(largest, gemm.output);
  }
  return std::abs(got - exact) <=
         HalfUlp(std::abs(exact) + computed, gemm.output) + computed;
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_CUDA_GEMM_TOLERANCE_H_
