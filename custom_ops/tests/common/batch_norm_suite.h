// Tests of batch_norm.h against double precision, for every device that computes it. A
// Device has Name(), and Normalize and Differentiate for arrays in host memory, which it
// computes before it returns.
//
// FP32 sums of at most 256 elements are summed in double: relative to the mean of |x| a
// mean errs by (256 + 2) * 2^-24 < 2^-15, and so do the other sums relative to theirs.
// A result then takes a few FP32 operations, whose bounds Bound() adds up, and one
// rounding to 16 bits.

#ifndef KERAS_MP_TESTS_COMMON_BATCH_NORM_SUITE_H_
#define KERAS_MP_TESTS_COMMON_BATCH_NORM_SUITE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/batch_norm.h"

namespace keras_mp::batch_norm {

constexpr double kSum = 0x1p-15;
constexpr float kEpsilon = 1e-3f;

// Both functions on random inputs, with a guard after each output.
class Case {
 public:
  Case(const ChannelShape& shape, DataType type, float mean, std::mt19937& random)
      : shape_(shape), type_(type) {
    const std::int64_t size = shape.outer * shape.channels * shape.inner;
    x = Numbers(type, size, mean, 1, random);
    grad_y = Numbers(type, size, 0, 1, random);
    gamma = Floats(shape.channels, 1, 0.25f, random);
    beta = Floats(shape.channels, 0, 1, random);
    y.assign(size + 1, kGuard);
    grad_x = y;
    for (auto* row : {&mean_, &variance_, &grad_gamma, &grad_beta}) {
      row->assign(shape.channels + 1, kFloatGuard);
    }
  }

  // In inference, with mean 2 and variance 3 for all channels.
  template <class Device>
  void Run(Device& device, bool inference = false) {
    inference_ = inference;
    if (inference) {
      std::fill_n(mean_.begin(), shape_.channels, 2.0f);
      std::fill_n(variance_.begin(), shape_.channels, 3.0f);
    }
    BatchNorm norm;
    norm.shape = shape_;
    norm.type = type_;
    norm.epsilon = kEpsilon;
    norm.inference = inference;
    norm.x = x.data();
    norm.gamma = gamma.data();
    norm.beta = beta.data();
    norm.y = y.data();
    norm.mean = mean_.data();
    norm.variance = variance_.data();
    const Status forward = device.Normalize(norm);
    EXPECT(forward.ok(), "%s", forward.message);
    BatchNormGradient gradient;
    gradient.shape = shape_;
    gradient.type = type_;
    gradient.epsilon = kEpsilon;
    gradient.inference = inference;
    gradient.x = x.data();
    gradient.grad_y = grad_y.data();
    gradient.gamma = gamma.data();
    gradient.mean = mean_.data();
    gradient.variance = variance_.data();
    gradient.grad_x = grad_x.data();
    gradient.grad_gamma = grad_gamma.data();
    gradient.grad_beta = grad_beta.data();
    const Status backward = device.Differentiate(gradient);
    EXPECT(backward.ok(), "%s", backward.message);
  }

  void Check(const char* device) {
    for (std::int64_t c = 0; c < shape_.channels; ++c) CheckChannel(device, c);
    EXPECT(y.back() == kGuard && grad_x.back() == kGuard, "wrote behind a result");
    for (const auto* row : {&mean_, &variance_, &grad_gamma, &grad_beta}) {
      EXPECT(row->back() == kFloatGuard, "wrote behind the channels");
    }
  }

  std::vector<std::uint16_t> x, grad_y, y, grad_x;
  std::vector<float> gamma, beta, mean_, variance_, grad_gamma, grad_beta;

 private:
  static constexpr std::uint16_t kGuard = 0xa5a5;
  static constexpr float kFloatGuard = -12345.0f;

  template <class Body>
  void ForNumbers(std::int64_t c, const Body& body) {
    for (std::int64_t o = 0; o < shape_.outer; ++o) {
      for (std::int64_t i = 0; i < shape_.inner; ++i) {
        body((o * shape_.channels + c) * shape_.inner + i);
      }
    }
  }

  void Expect(const char* device, const char* what, std::int64_t c, double actual, double expected,
              double tolerance) {
    EXPECT(std::abs(actual - expected) <= tolerance,
           "%s [%ld, %ld, %ld] %s of channel %ld: %.9g, expected %.9g within %.3g",
           device, shape_.outer, shape_.channels, shape_.inner, what, c, actual,
           expected, tolerance);
  }

  void CheckChannel(const char* device, std::int64_t c) {
    const double count = 1.0 * shape_.outer * shape_.inner;
    double sum = 0, size = 0;
    ForNumbers(c, [&](std::int64_t i) {
      sum += From16(type_, x[i]);
      size += std::abs(From16(type_, x[i]));
    });
    const double mean = inference_ ? 2 : sum / count;
    const double of_mean = inference_ ? 0 : kSum * size / count;
    double square = 0;
    ForNumbers(c, [&](std::int64_t i) {
      square += std::pow(From16(type_, x[i]) - mean, 2);
    });
    const double variance = inference_ ? 3 : square / count;
    // A mean that is off by e makes each square (d + e)^2.
    const double of_variance =
        inference_ ? 0
                   : kSum * variance + 2 * of_mean * std::sqrt(variance) + of_mean * of_mean;
    Expect(device, "mean", c, mean_[c], mean, of_mean);
    Expect(device, "variance", c, variance_[c], variance, of_variance);

    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    const double of_inverse =
        inverse * (of_variance / (2 * (variance + kEpsilon)) + 0x1p-22);
    double d_sum = 0, d_size = 0, product = 0, product_size = 0;
    ForNumbers(c, [&](std::int64_t i) {
      const double d = From16(type_, grad_y[i]);
      const double z = (From16(type_, x[i]) - mean) * inverse;
      d_sum += d;
      d_size += std::abs(d);
      product += d * z;
      product_size += std::abs(d * z);
    });
    const double of_d_sum = kSum * d_size;
    const double relative = of_inverse / inverse;
    const double of_product =
        (kSum + relative) * product_size + d_size * of_mean * inverse;
    Expect(device, "grad_beta", c, grad_beta[c], d_sum, of_d_sum);
    Expect(device, "grad_gamma", c, grad_gamma[c], product, of_product);

    ForNumbers(c, [&](std::int64_t i) {
      const double z = (From16(type_, x[i]) - mean) * inverse;
      const double grad_z = std::abs(z) * (relative + 0x1p-22) + of_mean * inverse;
      const double expected = gamma[c] * z + beta[c];
      const double error = std::abs(gamma[c]) * grad_z +
                           0x1p-22 * (std::abs(gamma[c] * z) + std::abs(beta[c]));
      Expect(device, "y", c, From16(type_, y[i]), expected,
             Rounded(type_, expected, error));
      const double d = From16(type_, grad_y[i]);
      const double scale = std::abs(gamma[c]) * inverse;
      const double share = inference_ ? 0 : 1 / count;
      const double slope =
          gamma[c] * inverse * (d - d_sum * share - z * product * share);
      const double terms = std::abs(d) + std::abs(d_sum) * share +
                           std::abs(z * product) * share;
      const double of_slope =
          scale * ((relative + 0x1p-21) * terms + of_d_sum * share +
                   (grad_z * std::abs(product) + std::abs(z) * of_product) * share);
      Expect(device, "grad_x", c, From16(type_, grad_x[i]), slope,
             Rounded(type_, slope, of_slope));
    });
  }

  ChannelShape shape_;
  DataType type_;
  bool inference_ = false;
};

template <class Device>
void TestSizes(Device& device, const std::vector<std::int64_t>& all_channels,
               const std::vector<std::int64_t>& counts) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t channels : all_channels) {
      for (std::int64_t rows : counts) {
        Case one({rows, channels, 1}, type, 3, random);
        one.Run(device, /*inference=*/random() % 3 == 0);
        one.Check(device.Name());
      }
      for (std::int64_t inner : counts) {
        Case one({3, channels, inner}, type, 3, random);
        one.Run(device, /*inference=*/random() % 3 == 0);
        one.Check(device.Name());
      }
    }
  }
}

// Data whose sums in FP32 alone would err by a multiple of the deviation.
template <class Device>
void TestManyNumbersFarFromZero(Device& device, std::int64_t many) {
  std::mt19937 random(2);
  for (const ChannelShape& shape : {ChannelShape{many, 3, 1}, {2, 3, many / 2}}) {
    Case one(shape, DataType::kHalf, 1000, random);
    one.Run(device);
    one.Check(device.Name());
  }
}

template <class Device>
void TestAConstantChannelIsBeta(Device& device) {
  std::mt19937 random(4);
  for (const ChannelShape& shape : {ChannelShape{500, 9, 1}, {5, 9, 100}}) {
    Case one(shape, DataType::kHalf, 0, random);
    std::fill(one.x.begin(), one.x.end(), FloatToHalf(1000));
    one.Run(device);
    EXPECT(one.variance_[0] == 0 && one.mean_[0] == 1000, "%s", device.Name());
    EXPECT(one.y[0] == FloatToHalf(one.beta[0]), "%s", device.Name());
  }
}

template <class Device>
void TestANanStaysInItsChannel(Device& device) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ChannelShape& shape : {ChannelShape{300, 19, 1}, {3, 19, 100}}) {
    for (float bad : {nan, inf, -inf}) {
      std::mt19937 random(5);
      Case one(shape, DataType::kHalf, 0, random);
      one.x[shape.inner] = FloatToHalf(bad);  // the second channel
      one.Run(device);
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        const bool is_nan = std::isnan(HalfToFloat(one.y[c * shape.inner]));
        EXPECT(is_nan == (c == 1), "%s channel %ld", device.Name(), c);
        EXPECT(std::isnan(one.variance_[c]) == (c == 1), "%s channel %ld", device.Name(), c);
        EXPECT(std::isfinite(one.mean_[c]) == (c != 1), "%s channel %ld", device.Name(), c);
      }
    }
  }
}

template <class Device>
void TestNothing(Device& device) {
  std::mt19937 random(6);
  for (const ChannelShape& shape : {ChannelShape{0, 3, 1}, {3, 0, 1}, {3, 3, 0}}) {
    Case one(shape, DataType::kHalf, 0, random);
    one.Run(device);
    if (shape.channels == 0) continue;
    EXPECT(std::isnan(one.mean_[0]) && std::isnan(one.variance_[0]), "%s", device.Name());
    EXPECT(one.grad_gamma[0] == 0 && one.grad_beta[0] == 0, "%s", device.Name());
  }
}

template <class Device>
void TestErrors(Device& device) {
  BatchNorm norm;
  norm.shape.outer = -1;
  EXPECT(device.Normalize(norm).code == StatusCode::kInvalidArgument, "negative size");
  norm.shape.outer = 0;
  norm.type = DataType::kFloat;
  EXPECT(device.Normalize(norm).code == StatusCode::kInvalidArgument, "FP32");
  BatchNormGradient gradient;
  gradient.type = DataType::kFloat;
  EXPECT(device.Differentiate(gradient).code == StatusCode::kInvalidArgument, "FP32");
}

// `channels`, `counts`: of the tensors. `many`: elements of a channel far from zero.
template <class Device>
void TestAll(Device& device, const std::vector<std::int64_t>& channels,
             const std::vector<std::int64_t>& counts, std::int64_t many) {
  std::printf("%s\n", device.Name());
  TestSizes(device, channels, counts);
  TestManyNumbersFarFromZero(device, many);
  TestAConstantChannelIsBeta(device);
  TestANanStaysInItsChannel(device);
  TestNothing(device);
  TestErrors(device);
}

}  // namespace keras_mp::batch_norm

#endif  // KERAS_MP_TESTS_COMMON_BATCH_NORM_SUITE_H_
