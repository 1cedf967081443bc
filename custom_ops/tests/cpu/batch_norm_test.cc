// Tests batch_norm_cpu.h against double precision, on every instruction set of this
// machine.
//
// FP32 sums of at most 256 elements are summed in double: relative to the mean of |x| a
// mean errs by (256 + 2) * 2^-24 < 2^-15, and so do the other sums relative to theirs.
// A result then takes a few FP32 operations, whose bounds Bound() adds up, and one
// rounding to 16 bits.

#include "keras_mp/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"

namespace keras_mp {
namespace {

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
  void Run(Isa isa, int threads, bool inference = false) {
    inference_ = inference;
    if (inference) {
      std::fill_n(mean_.begin(), shape_.channels, 2.0f);
      std::fill_n(variance_.begin(), shape_.channels, 3.0f);
    }
    const Parallel parallel = {threads, &threads, RunOnThreads};
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
    const Status forward = BatchNormCpu(norm, parallel, isa);
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
    const Status backward = BatchNormGradientCpu(gradient, parallel, isa);
    EXPECT(backward.ok(), "%s", backward.message);
  }

  void Check(Isa isa) {
    for (std::int64_t c = 0; c < shape_.channels; ++c) CheckChannel(isa, c);
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

  void Expect(Isa isa, const char* what, std::int64_t c, double actual, double expected,
              double tolerance) {
    EXPECT(std::abs(actual - expected) <= tolerance,
           "%s [%ld, %ld, %ld] %s of channel %ld: %.9g, expected %.9g within %.3g",
           Name(isa), shape_.outer, shape_.channels, shape_.inner, what, c, actual,
           expected, tolerance);
  }

  void CheckChannel(Isa isa, std::int64_t c) {
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
    Expect(isa, "mean", c, mean_[c], mean, of_mean);
    Expect(isa, "variance", c, variance_[c], variance, of_variance);

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
    Expect(isa, "grad_beta", c, grad_beta[c], d_sum, of_d_sum);
    Expect(isa, "grad_gamma", c, grad_gamma[c], product, of_product);

    ForNumbers(c, [&](std::int64_t i) {
      const double z = (From16(type_, x[i]) - mean) * inverse;
      const double grad_z = std::abs(z) * (relative + 0x1p-22) + of_mean * inverse;
      const double expected = gamma[c] * z + beta[c];
      const double error = std::abs(gamma[c]) * grad_z +
                           0x1p-22 * (std::abs(gamma[c] * z) + std::abs(beta[c]));
      Expect(isa, "y", c, From16(type_, y[i]), expected,
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
      Expect(isa, "grad_x", c, From16(type_, grad_x[i]), slope,
             Rounded(type_, slope, of_slope));
    });
  }

  ChannelShape shape_;
  DataType type_;
  bool inference_ = false;
};

void TestSizes(Isa isa) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t channels : {1, 7, 16, 17, 64, 111, 217}) {
      for (std::int64_t rows : {1, 7, 17, 256, 257, 989}) {
        Case one({rows, channels, 1}, type, 3, random);
        one.Run(isa, 1 + random() % 3, /*inference=*/random() % 3 == 0);
        one.Check(isa);
      }
      for (std::int64_t inner : {2, 7, 16, 64, 257, 989}) {
        Case one({3, channels, inner}, type, 3, random);
        one.Run(isa, 1 + random() % 3, /*inference=*/random() % 3 == 0);
        one.Check(isa);
      }
    }
  }
}

// Data whose sums in FP32 alone would err by a multiple of the deviation.
void TestManyNumbersFarFromZero(Isa isa) {
  std::mt19937 random(2);
  for (const ChannelShape& shape : {ChannelShape{200'000, 3, 1}, {2, 3, 100'000}}) {
    Case one(shape, DataType::kHalf, 1000, random);
    one.Run(isa, 2);
    one.Check(isa);
  }
}

void TestThreadsDoNotChangeBits(Isa isa) {
  for (const ChannelShape& shape : {ChannelShape{989, 217, 1}, {5, 17, 989}}) {
    std::mt19937 random(3), again(3);
    Case one(shape, DataType::kHalf, 1, random), other(shape, DataType::kHalf, 1, again);
    one.Run(isa, 1);
    other.Run(isa, 3);
    EXPECT(one.y == other.y && one.grad_x == other.grad_x && one.mean_ == other.mean_ &&
               one.variance_ == other.variance_ && one.grad_gamma == other.grad_gamma,
           "%s", Name(isa));
  }
}

void TestAConstantChannelIsBeta(Isa isa) {
  std::mt19937 random(4);
  for (const ChannelShape& shape : {ChannelShape{500, 9, 1}, {5, 9, 100}}) {
    Case one(shape, DataType::kHalf, 0, random);
    std::fill(one.x.begin(), one.x.end(), FloatToHalf(1000));
    one.Run(isa, 1);
    EXPECT(one.variance_[0] == 0 && one.mean_[0] == 1000, "%s", Name(isa));
    EXPECT(one.y[0] == FloatToHalf(one.beta[0]), "%s", Name(isa));
  }
}

void TestANanStaysInItsChannel(Isa isa) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ChannelShape& shape : {ChannelShape{300, 19, 1}, {3, 19, 100}}) {
    for (float bad : {nan, inf, -inf}) {
      std::mt19937 random(5);
      Case one(shape, DataType::kHalf, 0, random);
      one.x[shape.inner] = FloatToHalf(bad);  // the second channel
      one.Run(isa, 1);
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        const bool is_nan = std::isnan(HalfToFloat(one.y[c * shape.inner]));
        EXPECT(is_nan == (c == 1), "%s channel %ld", Name(isa), c);
        EXPECT(std::isnan(one.variance_[c]) == (c == 1), "%s channel %ld", Name(isa), c);
        EXPECT(std::isfinite(one.mean_[c]) == (c != 1), "%s channel %ld", Name(isa), c);
      }
    }
  }
}

void TestNothing(Isa isa) {
  std::mt19937 random(6);
  for (const ChannelShape& shape : {ChannelShape{0, 3, 1}, {3, 0, 1}, {3, 3, 0}}) {
    Case one(shape, DataType::kHalf, 0, random);
    one.Run(isa, 2);
    if (shape.channels == 0) continue;
    EXPECT(std::isnan(one.mean_[0]) && std::isnan(one.variance_[0]), "%s", Name(isa));
    EXPECT(one.grad_gamma[0] == 0 && one.grad_beta[0] == 0, "%s", Name(isa));
  }
}

void TestErrors() {
  BatchNorm norm;
  norm.shape.outer = -1;
  EXPECT(BatchNormCpu(norm).code == StatusCode::kInvalidArgument, "negative size");
  norm.shape.outer = 0;
  norm.type = DataType::kFloat;
  EXPECT(BatchNormCpu(norm).code == StatusCode::kInvalidArgument, "FP32");
  BatchNormGradient gradient;
  gradient.type = DataType::kFloat;
  EXPECT(BatchNormGradientCpu(gradient).code == StatusCode::kInvalidArgument, "FP32");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestSizes(isa);
    TestManyNumbersFarFromZero(isa);
    TestThreadsDoNotChangeBits(isa);
    TestAConstantChannelIsBeta(isa);
    TestANanStaysInItsChannel(isa);
    TestNothing(isa);
  }
  return Report();
}
