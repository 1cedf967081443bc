// Tests of row_norm.h against double precision, for every device that computes it. A
// Device has Name(), and RowNorm and RowNormGradient for arrays in host memory, which it
// computes before it returns.

#ifndef KERAS_MP_TESTS_COMMON_ROW_NORM_SUITE_H_
#define KERAS_MP_TESTS_COMMON_ROW_NORM_SUITE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/row_norm.h"

namespace keras_mp::row_norm {

constexpr double kSum = 0x1p-17;      // error of a sum over a row, relative to sum |.|
constexpr double kRowsSum = 0x1p-15;  // error of a sum over the rows
constexpr RowNormKind kKinds[] = {RowNormKind::kLayer, RowNormKind::kRootMeanSquare,
                                  RowNormKind::kUnitLength};

// Both functions, with a guard after each output.
struct Case {
  static constexpr std::uint16_t kGuard = 0xa5a5;
  static constexpr float kFloatGuard = -12345.0f;

  std::int64_t rows, size;
  DataType type;
  RowNormKind kind;
  float epsilon;
  std::vector<std::uint16_t> x, grad_y, y, grad_x;
  std::vector<float> gamma, beta, grad_gamma, grad_beta;

  Case(std::int64_t rows, std::int64_t size, DataType type, RowNormKind kind,
       std::mt19937& random)
      : rows(rows), size(size), type(type), kind(kind) {
    epsilon = kind == RowNormKind::kUnitLength ? 1e-12f : 1e-3f;
    x = Numbers(type, rows * size, 3, 1, random);
    grad_y = Numbers(type, rows * size, 0, 1, random);
    y.assign(rows * size + 1, kGuard);
    grad_x = y;
    gamma = Floats(size, 1, 0.25f, random);
    beta = Floats(size, 0, 1, random);
    grad_gamma.assign(size + 1, kFloatGuard);
    grad_beta = grad_gamma;
  }

  // Where `plain`, without gamma, beta and their gradients.
  template <class Device>
  void Run(Device& device, bool plain = false) {
    if (plain) {
      std::fill(gamma.begin(), gamma.end(), 1.0f);
      std::fill(beta.begin(), beta.end(), 0.0f);
    }
    RowNorm norm;
    norm.rows = rows;
    norm.size = size;
    norm.type = type;
    norm.kind = kind;
    norm.epsilon = epsilon;
    norm.x = x.data();
    norm.gamma = plain ? nullptr : gamma.data();
    norm.beta = plain ? nullptr : beta.data();
    norm.y = y.data();
    const Status forward = device.Normalize(norm);
    EXPECT(forward.ok(), "%s", forward.message);
    RowNormGradient gradient;
    gradient.rows = rows;
    gradient.size = size;
    gradient.type = type;
    gradient.kind = kind;
    gradient.epsilon = epsilon;
    gradient.x = x.data();
    gradient.grad_y = grad_y.data();
    gradient.gamma = norm.gamma;
    gradient.grad_x = grad_x.data();
    gradient.grad_gamma = plain ? nullptr : grad_gamma.data();
    gradient.grad_beta = plain ? nullptr : grad_beta.data();
    const Status backward = device.Differentiate(gradient);
    EXPECT(backward.ok(), "%s", backward.message);
  }

  double At(const std::vector<std::uint16_t>& matrix, std::int64_t row,
            std::int64_t i) const {
    return From16(type, matrix[row * size + i]);
  }

  // Mean and inverse deviation of a row, and their error bounds.
  struct Scale {
    double mean = 0, inverse = 0, of_mean = 0, relative = 0;
    double count = 0;
  };

  Scale ScaleOf(std::int64_t row) const {
    Scale scale;
    scale.count = kind == RowNormKind::kUnitLength ? 1 : size;
    double sum = 0, magnitude = 0, squares = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      sum += At(x, row, i);
      magnitude += std::abs(At(x, row, i));
    }
    if (kind == RowNormKind::kLayer) {
      scale.mean = sum / size;
      scale.of_mean = kSum * magnitude / size;
    }
    for (std::int64_t i = 0; i < size; ++i) {
      squares += std::pow(At(x, row, i) - scale.mean, 2);
    }
    const double added = kind == RowNormKind::kUnitLength ? 0 : epsilon;
    const double variance = squares / scale.count + added;
    scale.inverse = 1 / std::sqrt(variance);
    const double of_variance = kSum * variance + 2 * scale.of_mean * std::sqrt(variance) +
                               scale.of_mean * scale.of_mean;
    scale.relative = of_variance / (2 * variance) + 0x1p-22;
    return scale;
  }

  void Check(const char* device) const {
    std::vector<double> gammas(size), betas(size), of_gammas(size), of_betas(size);
    for (std::int64_t row = 0; row < rows; ++row) {
      const Scale scale = ScaleOf(row);
      double sum = 0, sum_size = 0, product = 0, product_size = 0, of_product = 0;
      for (std::int64_t i = 0; i < size; ++i) {
        const double z = (At(x, row, i) - scale.mean) * scale.inverse;
        const double grad_z = std::abs(z) * (scale.relative + 0x1p-22) +
                            scale.of_mean * scale.inverse;
        const double d = At(grad_y, row, i), h = d * gamma[i];
        const double expected = gamma[i] * z + beta[i];
        Expect(device, "y", i, At(y, row, i), expected,
               Rounded(type, expected,
                       std::abs(gamma[i]) * grad_z +
                           0x1p-22 * (std::abs(gamma[i] * z) + std::abs(beta[i]))));
        sum += h;
        sum_size += std::abs(h);
        product += h * z;
        product_size += std::abs(h * z);
        of_product += std::abs(h) * grad_z;
        gammas[i] += d * z;
        of_gammas[i] += std::abs(d) * grad_z + kRowsSum * std::abs(d * z);
        betas[i] += d;
        of_betas[i] += kRowsSum * std::abs(d);
      }
      const bool centered = kind == RowNormKind::kLayer;
      of_product += kSum * product_size;
      for (std::int64_t i = 0; i < size; ++i) {
        const double z = (At(x, row, i) - scale.mean) * scale.inverse;
        const double grad_z = std::abs(z) * (scale.relative + 0x1p-22) +
                            scale.of_mean * scale.inverse;
        const double h = At(grad_y, row, i) * gamma[i];
        const double mean_term = centered ? sum / size : 0;
        const double slope =
            scale.inverse * (h - mean_term - z * product / scale.count);
        const double terms = std::abs(h) + std::abs(mean_term) +
                             std::abs(z * product) / scale.count;
        const double error =
            scale.inverse * ((scale.relative + 0x1p-21) * terms +
                             (centered ? kSum * sum_size / size : 0) +
                             (grad_z * std::abs(product) + std::abs(z) * of_product) /
                                 scale.count);
        Expect(device, "grad_x", i, At(grad_x, row, i), slope, Rounded(type, slope, error));
      }
    }
    if (grad_gamma[0] != kFloatGuard) {
      for (std::int64_t i = 0; i < size; ++i) {
        Expect(device, "grad_gamma", i, grad_gamma[i], gammas[i], of_gammas[i]);
        Expect(device, "grad_beta", i, grad_beta[i], betas[i], of_betas[i]);
      }
    }
    EXPECT(y.back() == kGuard && grad_x.back() == kGuard, "wrote behind a result");
    EXPECT(grad_gamma.back() == kFloatGuard && grad_beta.back() == kFloatGuard,
           "wrote behind a gradient");
  }

  void Expect(const char* device, const char* what, std::int64_t i, double actual, double expected,
              double tolerance) const {
    EXPECT(std::abs(actual - expected) <= tolerance,
           "%s kind %d [%ld, %ld] %s at %ld: %.9g, expected %.9g within %.3g", device,
           static_cast<int>(kind), rows, size, what, i, actual, expected, tolerance);
  }
};

template <class Device>
void TestSizes(Device& device, const std::vector<std::int64_t>& sizes,
               const std::vector<std::int64_t>& all_rows) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (RowNormKind kind : kKinds) {
      for (std::int64_t size : sizes) {
        for (std::int64_t rows : all_rows) {
          const bool plain = random() % 3 == 0;
          Case one(rows, size, type, kind, random);
          one.Run(device, plain);
          one.Check(device.Name());
        }
      }
    }
  }
}

// Elements whose squares overflow FP16.
template <class Device>
void TestLargeNumbers(Device& device) {
  std::mt19937 random(2);
  for (RowNormKind kind : kKinds) {
    Case one(3, 1000, DataType::kHalf, kind, random);
    one.x = Numbers(DataType::kHalf, 3000, 3000, 10000, random);
    one.Run(device);
    one.Check(device.Name());
  }
}

template <class Device>
void TestARowOfZeros(Device& device) {
  std::mt19937 random(3);
  Case one(2, 21, DataType::kHalf, RowNormKind::kUnitLength, random);
  std::fill_n(one.x.begin(), 21, std::uint16_t{0});
  one.Run(device, /*plain=*/true);
  for (int i = 0; i < 21; ++i) {
    EXPECT(HalfToFloat(one.y[i]) == 0 && HalfToFloat(one.grad_x[i]) == 0, "%s",
           device.Name());
    EXPECT(HalfToFloat(one.y[21 + i]) != 0, "%s", device.Name());
  }
}

// Rows of bfloat16 shorter than epsilon: y is x / epsilon.
template <class Device>
void TestAShortRow(Device& device) {
  std::mt19937 random(7);
  Case one(1, 2, DataType::kBfloat16, RowNormKind::kUnitLength, random);
  one.x = {To16(one.type, 3e-13f), To16(one.type, 4e-13f)};
  one.grad_y = {To16(one.type, 1), To16(one.type, 0)};
  one.Run(device, /*plain=*/true);
  EXPECT(std::abs(From16(one.type, one.y[1]) - 0.4f) < 0.01f, "%s", device.Name());
  EXPECT(std::abs(From16(one.type, one.grad_x[0]) / 1e12f - 1) < 0.01f, "%s", device.Name());
  EXPECT(one.grad_x[1] == 0, "%s", device.Name());
}

template <class Device>
void TestANanStaysInItsRow(Device& device) {
  for (RowNormKind kind : kKinds) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity()}) {
      std::mt19937 random(4);
      Case one(3, 21, DataType::kHalf, kind, random);
      one.x[21 + 20] = FloatToHalf(bad);
      one.Run(device);
      for (std::int64_t row = 0; row < 3; ++row) {
        // A finite element divided by an infinite length is 0.
        const std::uint16_t last = one.y[row * 21 + 20];
        EXPECT(std::isnan(HalfToFloat(last)) == (row == 1), "%s", device.Name());
      }
    }
  }
}

template <class Device>
void TestNothing(Device& device) {
  std::mt19937 random(6);
  Case rows(0, 3, DataType::kHalf, RowNormKind::kLayer, random);
  rows.Run(device);
  EXPECT(rows.grad_gamma[0] == 0 && rows.grad_beta[2] == 0, "%s", device.Name());
  Case(3, 0, DataType::kHalf, RowNormKind::kLayer, random).Run(device);
}

template <class Device>
void TestErrors(Device& device) {
  RowNorm norm;
  norm.size = -1;
  EXPECT(device.Normalize(norm).code == StatusCode::kInvalidArgument, "negative size");
  RowNormGradient gradient;
  gradient.type = DataType::kFloat;
  EXPECT(device.Differentiate(gradient).code == StatusCode::kInvalidArgument, "FP32");
}

// `sizes`: of the rows, of which there are as many as `rows` says.
template <class Device>
void TestAll(Device& device, const std::vector<std::int64_t>& sizes,
             const std::vector<std::int64_t>& rows = {1, 17, 300}) {
  std::printf("%s\n", device.Name());
  TestSizes(device, sizes, rows);
  TestLargeNumbers(device);
  TestARowOfZeros(device);
  TestAShortRow(device);
  TestANanStaysInItsRow(device);
  TestNothing(device);
  TestErrors(device);
}

}  // namespace keras_mp::row_norm

#endif  // KERAS_MP_TESTS_COMMON_ROW_NORM_SUITE_H_
