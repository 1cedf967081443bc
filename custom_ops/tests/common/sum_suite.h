// Tests of sum.h against double precision, for every device that computes it. A Device has
// Name(), and Add for arrays in host memory, which it computes before it returns.

#ifndef KERAS_MP_TESTS_COMMON_SUM_SUITE_H_
#define KERAS_MP_TESTS_COMMON_SUM_SUITE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/sum.h"

namespace keras_mp::sum {

constexpr float kGuard = -12345.0f;

template <class Device>
std::vector<float> SumOf(const std::vector<std::uint16_t>& x, std::int64_t outer,
                         std::int64_t count, std::int64_t inner, DataType type,
                         Device& device) {
  std::vector<float> y(outer * inner + 1, kGuard);
  Sum sum;
  sum.outer = outer;
  sum.count = count;
  sum.inner = inner;
  sum.type = type;
  sum.x = x.data();
  sum.y = y.data();
  const Status status = device.Add(sum);
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(y.back() == kGuard, "wrote behind the result");
  return y;
}

template <class Device>
void Check(Device& device, DataType type, std::int64_t outer, std::int64_t count,
           std::int64_t inner, float mean, std::mt19937& random) {
  const auto x = Numbers(type, outer * count * inner, mean, 1, random);
  const auto y = SumOf(x, outer, count, inner, type, device);
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      double expected = 0, magnitude = 0;
      for (std::int64_t c = 0; c < count; ++c) {
        const double number = From16(type, x[(o * count + c) * inner + i]);
        expected += number;
        magnitude += std::abs(number);
      }
      const double actual = y[o * inner + i];
      EXPECT(std::abs(actual - expected) <= 0x1p-15 * magnitude,
             "%s [%ld, %ld, %ld] (%ld, %ld): %.9g, expected %.9g", device.Name(), outer,
             count, inner, o, i, actual, expected);
    }
  }
}

template <class Device>
void TestSizes(Device& device, const std::vector<std::int64_t>& counts) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t count : counts) {
      for (std::int64_t inner : {0, 1, 2, 7, 16, 17, 64, 111, 217}) {
        for (std::int64_t outer : {0, 1, 5}) {
          Check(device, type, outer, count, inner, 3, random);
        }
      }
    }
  }
}

// Data that one FP32 sum would round away, or to integers.
template <class Device>
void TestManyNumbers(Device& device, std::int64_t many) {
  const std::vector<std::uint16_t> ones(many, FloatToHalf(1));
  EXPECT(SumOf(ones, 1, many, 1, DataType::kHalf, device)[0] == many, "%s", device.Name());
  EXPECT(SumOf(ones, 1, many / 2, 2, DataType::kHalf, device)[1] == many / 2, "%s",
         device.Name());
}

template <class Device>
void TestANanStaysInItsSum(Device& device) {
  for (std::int64_t inner : {1, 19}) {
    std::mt19937 random(2);
    auto x = Numbers(DataType::kHalf, 3 * 300 * inner, 0, 1, random);
    x[(300 + 299) * inner] = FloatToHalf(std::numeric_limits<float>::quiet_NaN());
    const auto y = SumOf(x, 3, 300, inner, DataType::kHalf, device);
    for (std::int64_t i = 0; i < 3 * inner; ++i) {
      EXPECT(std::isnan(y[i]) == (i == inner), "%s at %ld", device.Name(), i);
    }
  }
}

template <class Device>
void TestErrors(Device& device) {
  Sum sum;
  sum.count = -1;
  EXPECT(device.Add(sum).code == StatusCode::kInvalidArgument, "negative size");
  sum.count = 0;
  sum.type = DataType::kFloat;
  EXPECT(device.Add(sum).code == StatusCode::kInvalidArgument, "FP32");
}

// `counts`: of the elements of a sum. `many`: elements of a sum of ones.
template <class Device>
void TestAll(Device& device, const std::vector<std::int64_t>& counts,
             std::int64_t many) {
  std::printf("%s\n", device.Name());
  TestSizes(device, counts);
  TestManyNumbers(device, many);
  TestANanStaysInItsSum(device);
  TestErrors(device);
}

}  // namespace keras_mp::sum

#endif  // KERAS_MP_TESTS_COMMON_SUM_SUITE_H_
