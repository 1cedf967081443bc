// Tests softmax_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/softmax_cpu.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"

namespace keras_mp {
namespace {

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

  void Run(Isa isa, int threads) {
    const Parallel parallel = {threads, &threads, RunOnThreads};
    Softmax softmax;
    softmax.rows = rows;
    softmax.size = size;
    softmax.type = type;
    softmax.x = x.data();
    softmax.y = y.data();
    const Status forward = SoftmaxCpu(softmax, parallel, isa);
    EXPECT(forward.ok(), "%s", forward.message);
    SoftmaxGradient gradient;
    gradient.rows = rows;
    gradient.size = size;
    gradient.type = type;
    gradient.x = x.data();
    gradient.grad_y = grad_y.data();
    gradient.grad_x = grad_x.data();
    const Status backward = SoftmaxGradientCpu(gradient, parallel, isa);
    EXPECT(backward.ok(), "%s", backward.message);

    std::vector<float> float_x(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) float_x[i] = From16(type, x[i]);
    softmax.is_x_float = true;
    softmax.x = float_x.data();
    softmax.y = y_of_float.data();
    const Status float_forward = SoftmaxCpu(softmax, parallel, isa);
    EXPECT(float_forward.ok(), "%s", float_forward.message);
    FloatSoftmaxGradient float_gradient;
    float_gradient.rows = rows;
    float_gradient.size = size;
    float_gradient.type = type;
    float_gradient.y = y_of_float.data();
    float_gradient.grad_y = grad_y.data();
    float_gradient.grad_x = grad_float_x.data();
    const Status float_backward = FloatSoftmaxGradientCpu(float_gradient, parallel, isa);
    EXPECT(float_backward.ok(), "%s", float_backward.message);
  }

  void Check(Isa isa) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      CheckRow(isa, row);
      CheckFloatGradientOfRow(isa, row);
    }
    EXPECT(y.back() == kGuard && grad_x.back() == kGuard &&
               grad_float_x.back() == kFloatGuard,
           "wrote behind a result");
    EXPECT(y == y_of_float, "%s: FP32 numbers have another softmax", Name(isa));
  }

  void CheckRow(Isa isa, std::int64_t row) const {
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
      Expect(isa, "y", row, i, at(y, i), p, error);
      Expect(isa, "grad_x", row, i, at(grad_x, i), slope,
             2 * error * (std::abs(at(grad_y, i)) + magnitude));
    }
  }

  // The gradient from the rounded result.
  void CheckFloatGradientOfRow(Isa isa, std::int64_t row) const {
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
      const double bound = kError * at(y, i) * (std::abs(at(grad_y, i)) + magnitude);
      const double actual = grad_float_x[row * size + i];
      const bool right = std::isnan(expected) ? std::isnan(actual)
                                              : std::abs(actual - expected) <= bound;
      EXPECT(right, "%s [%ld, %ld] of FP32 (%ld, %ld): %.9g, expected %.9g", Name(isa),
             rows, size, row, i, actual, expected);
    }
  }

  void Expect(Isa isa, const char* what, std::int64_t row, std::int64_t i, double actual,
              double expected, double error) const {
    const bool right =
        std::isnan(expected) ? std::isnan(actual)
                             : std::abs(actual - expected) <= Rounded(type, expected, error);
    EXPECT(right, "%s [%ld, %ld] %s (%ld, %ld): %.9g, expected %.9g", Name(isa), rows,
           size, what, row, i, actual, expected);
  }
};

void TestSizes(Isa isa) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t size : {1, 7, 16, 17, 64, 111, 217, 989, 1024, 1025, 5000}) {
      for (float deviation : {1.0f, 30.0f}) {
        Case one(1 + random() % 40, size, type, deviation, random);
        one.Run(isa, 1 + random() % 3);
        one.Check(isa);
      }
    }
  }
}

// Longer than a row whose exponentials are kept.
void TestLongRow(Isa isa) {
  std::mt19937 random(7);
  for (DataType type : kTypes) {
    Case one(2, (1 << 16) + 21, type, 3, random);
    one.Run(isa, 2);
    one.Check(isa);
  }
}

void TestManyEqualNumbers(Isa isa) {
  std::mt19937 random(2);
  Case one(2, 100'000, DataType::kHalf, 0, random);
  one.Run(isa, 2);
  one.Check(isa);
  EXPECT(one.y[99'999] == FloatToHalf(1e-5f), "%s", Name(isa));
}

void TestSpecialValues(Isa isa) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t size : {3, 21}) {
    for (float special : {nan, kInf, -kInf, 65504.0f, -65504.0f}) {
      for (std::int64_t place : {std::int64_t{0}, size - 1}) {
        std::mt19937 random(3);
        Case one(3, size, DataType::kHalf, 1, random);
        one.x[size + place] = FloatToHalf(special);
        one.Run(isa, 1);
        one.Check(isa);
      }
    }
    std::mt19937 random(4);
    Case one(1, size, DataType::kHalf, 1, random);
    std::fill(one.x.begin(), one.x.end(), FloatToHalf(-kInf));
    one.Run(isa, 1);
    EXPECT(std::isnan(HalfToFloat(one.y[0])), "%s", Name(isa));
  }
}

void TestThreadsDoNotChangeBits(Isa isa) {
  std::mt19937 random(5), again(5);
  Case one(300, 217, DataType::kHalf, 3, random), other(300, 217, DataType::kHalf, 3, again);
  one.Run(isa, 1);
  other.Run(isa, 3);
  EXPECT(one.y == other.y && one.grad_x == other.grad_x &&
             one.grad_float_x == other.grad_float_x,
         "%s", Name(isa));
}

void TestNothing(Isa isa) {
  std::mt19937 random(6);
  for (const auto& [rows, size] : {std::pair{0, 3}, std::pair{3, 0}}) {
    Case(rows, size, DataType::kHalf, 1, random).Run(isa, 2);
  }
}

void TestErrors() {
  Softmax softmax;
  softmax.rows = -1;
  EXPECT(SoftmaxCpu(softmax).code == StatusCode::kInvalidArgument, "negative size");
  SoftmaxGradient gradient;
  gradient.type = DataType::kFloat;
  EXPECT(SoftmaxGradientCpu(gradient).code == StatusCode::kInvalidArgument, "FP32");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestSizes(isa);
    TestLongRow(isa);
    TestManyEqualNumbers(isa);
    TestSpecialValues(isa);
    TestThreadsDoNotChangeBits(isa);
    TestNothing(isa);
  }
  return Report();
}
