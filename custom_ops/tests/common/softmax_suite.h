// Tests of softmax.h against double precision, for every device that computes it. A Device
// has Name(), and Normalize and two forms of Differentiate for arrays in host memory, which
// it computes before it returns.

#ifndef KERAS_MP_TESTS_COMMON_SOFTMAX_SUITE_H_
#define KERAS_MP_TESTS_COMMON_SOFTMAX_SUITE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/softmax.h"

namespace keras_mp::softmax {

constexpr double kError = 0x1p-19;  // relative error of a probability before rounding
constexpr float kInf = std::numeric_limits<float>::infinity();

// The softmax of x in 16 bits and of the same numbers in FP32, and the gradients, with a
// guard after each output.
struct Case {
  static constexpr std::uint16_t kGuard = 0xa5a5;
  static constexpr float kFloatGuard = -12345;

  std::int64_t rows, size;
  DataType type;
  std::vector<std::uint16_t> x, grad_y, y, grad_x, y_of_float;
  std::vector<float> grad_float_x;

  Case(std::int64_t rows, std::int64_t size, DataType type, float deviation,
       std::mt19937& random)
      : rows(rows), size(size), type(type) {
    x = Numbers(type, rows * size, 0, deviation, random);
    grad_y = Numbers(type, rows * size, 0, 1, random);
    y.assign(rows * size + 1, kGuard);
    grad_x = y_of_float = y;
    grad_float_x.assign(rows * size + 1, kFloatGuard);
  }

  template <class Device>
  void Run(Device& device) {
    Softmax softmax;
    softmax.rows = rows;
    softmax.size = size;
    softmax.type = type;
    softmax.x = x.data();
    softmax.y = y.data();
    const Status forward = device.Normalize(softmax);
    EXPECT(forward.ok(), "%s", forward.message);
    SoftmaxGradient gradient;
    gradient.rows = rows;
    gradient.size = size;
    gradient.type = type;
    gradient.x = x.data();
    gradient.grad_y = grad_y.data();
    gradient.grad_x = grad_x.data();
    const Status backward = device.Differentiate(gradient);
    EXPECT(backward.ok(), "%s", backward.message);

    std::vector<float> float_x(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) float_x[i] = From16(type, x[i]);
    softmax.is_x_float = true;
    softmax.x = float_x.data();
    softmax.y = y_of_float.data();
    const Status float_forward = device.Normalize(softmax);
    EXPECT(float_forward.ok(), "%s", float_forward.message);
    FloatSoftmaxGradient float_gradient;
    float_gradient.rows = rows;
    float_gradient.size = size;
    float_gradient.type = type;
    float_gradient.y = y_of_float.data();
    float_gradient.grad_y = grad_y.data();
    float_gradient.grad_x = grad_float_x.data();
    const Status float_backward = device.Differentiate(float_gradient);
    EXPECT(float_backward.ok(), "%s", float_backward.message);
  }

  void Check(const char* device) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      CheckRow(device, row);
      CheckFloatGradientOfRow(device, row);
    }
    EXPECT(y.back() == kGuard && grad_x.back() == kGuard &&
               grad_float_x.back() == kFloatGuard,
           "wrote behind a result");
    EXPECT(y == y_of_float, "%s: FP32 numbers have another softmax", device);
  }

  void CheckRow(const char* device, std::int64_t row) const {
    const auto at = [&](const std::vector<std::uint16_t>& matrix, std::int64_t i) {
      return static_cast<double>(From16(type, matrix[row * size + i]));
    };
    double max = -kInf, sum = 0, total = 0, magnitude = 0;
    for (std::int64_t i = 0; i < size; ++i) max = std::max(max, at(x, i));
    for (std::int64_t i = 0; i < size; ++i) sum += std::exp(at(x, i) - max);
    for (std::int64_t i = 0; i < size; ++i) {
      const double p = std::exp(at(x, i) - max) / sum;
      total += p * at(grad_y, i);
      magnitude += p * std::abs(at(grad_y, i));
    }
    for (std::int64_t i = 0; i < size; ++i) {
      const double p = std::exp(at(x, i) - max) / sum;
      const double slope = p * (at(grad_y, i) - total);
      // Below e^-87 the exponential is 0.
      const double error = kError * p + 0x1p-125;
      Expect(device, "y", row, i, at(y, i), p, error);
      Expect(device, "grad_x", row, i, at(grad_x, i), slope,
             2 * error * (std::abs(at(grad_y, i)) + magnitude));
    }
  }

  // The gradient from the rounded result.
  void CheckFloatGradientOfRow(const char* device, std::int64_t row) const {
    const auto at = [&](const std::vector<std::uint16_t>& matrix, std::int64_t i) {
      return static_cast<double>(From16(type, matrix[row * size + i]));
    };
    double total = 0, magnitude = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      total += at(y, i) * at(grad_y, i);
      magnitude += std::abs(at(y, i) * at(grad_y, i));
    }
    for (std::int64_t i = 0; i < size; ++i) {
      const double expected = at(y, i) * (at(grad_y, i) - total);
      // The last term: numbers below 2^-126 have a distance of 2^-149.
      const double bound =
          kError * at(y, i) * (std::abs(at(grad_y, i)) + magnitude) + 0x1p-149;
      const double actual = grad_float_x[row * size + i];
      const bool right = std::isnan(expected) ? std::isnan(actual)
                                              : std::abs(actual - expected) <= bound;
      EXPECT(right, "%s [%ld, %ld] of FP32 (%ld, %ld): %.9g, expected %.9g", device,
             rows, size, row, i, actual, expected);
    }
  }

  void Expect(const char* device, const char* what, std::int64_t row, std::int64_t i, double actual,
              double expected, double error) const {
    const bool right =
        std::isnan(expected) ? std::isnan(actual)
                             : std::abs(actual - expected) <= Rounded(type, expected, error);
    EXPECT(right, "%s [%ld, %ld] %s (%ld, %ld): %.9g, expected %.9g", device, rows,
           size, what, row, i, actual, expected);
  }
};

template <class Device>
void TestSizes(Device& device, const std::vector<std::int64_t>& sizes) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t size : sizes) {
      for (float deviation : {1.0f, 30.0f}) {
        Case one(1 + random() % 40, size, type, deviation, random);
        one.Run(device);
        one.Check(device.Name());
      }
    }
  }
}

template <class Device>
void TestLongRow(Device& device, std::int64_t size) {
  std::mt19937 random(7);
  for (DataType type : kTypes) {
    Case one(2, size, type, 3, random);
    one.Run(device);
    one.Check(device.Name());
  }
}

template <class Device>
void TestManyEqualNumbers(Device& device, std::int64_t size) {
  std::mt19937 random(2);
  Case one(2, size, DataType::kHalf, 0, random);
  one.Run(device);
  one.Check(device.Name());
  EXPECT(one.y[size - 1] == FloatToHalf(1.0f / size), "%s", device.Name());
}

template <class Device>
void TestSpecialValues(Device& device) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t size : {3, 21}) {
    for (float special : {nan, kInf, -kInf, 65504.0f, -65504.0f}) {
      for (std::int64_t place : {std::int64_t{0}, size - 1}) {
        std::mt19937 random(3);
        Case one(3, size, DataType::kHalf, 1, random);
        one.x[size + place] = FloatToHalf(special);
        one.Run(device);
        one.Check(device.Name());
      }
    }
    std::mt19937 random(4);
    Case one(1, size, DataType::kHalf, 1, random);
    std::fill(one.x.begin(), one.x.end(), FloatToHalf(-kInf));
    one.Run(device);
    EXPECT(std::isnan(HalfToFloat(one.y[0])), "%s", device.Name());
  }
}

template <class Device>
void TestNothing(Device& device) {
  std::mt19937 random(6);
  for (const auto& [rows, size] : {std::pair{0, 3}, std::pair{3, 0}}) {
    Case(rows, size, DataType::kHalf, 1, random).Run(device);
  }
}

template <class Device>
void TestErrors(Device& device) {
  Softmax softmax;
  softmax.rows = -1;
  EXPECT(device.Normalize(softmax).code == StatusCode::kInvalidArgument, "negative size");
  SoftmaxGradient gradient;
  gradient.type = DataType::kFloat;
  EXPECT(device.Differentiate(gradient).code == StatusCode::kInvalidArgument, "FP32");
}

// `sizes`: of the rows. `longest`: of a row, which has many equal numbers.
template <class Device>
void TestAll(Device& device, const std::vector<std::int64_t>& sizes,
             std::int64_t longest) {
  std::printf("%s\n", device.Name());
  TestSizes(device, sizes);
  TestLongRow(device, longest);
  TestManyEqualNumbers(device, longest);
  TestSpecialValues(device);
  TestNothing(device);
  TestErrors(device);
}

}  // namespace keras_mp::softmax

#endif  // KERAS_MP_TESTS_COMMON_SOFTMAX_SUITE_H_
