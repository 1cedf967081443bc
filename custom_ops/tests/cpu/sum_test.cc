// Tests sum_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/sum_cpu.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"

namespace keras_mp {
namespace {

constexpr float kGuard = -12345.0f;

std::vector<float> SumOf(const std::vector<std::uint16_t>& x, std::int64_t outer,
                         std::int64_t count, std::int64_t inner, DataType type, Isa isa,
                         int threads = 1) {
  std::vector<float> y(outer * inner + 1, kGuard);
  const Parallel parallel = {threads, &threads, RunOnThreads};
  Sum sum;
  sum.outer = outer;
  sum.count = count;
  sum.inner = inner;
  sum.type = type;
  sum.x = x.data();
  sum.y = y.data();
  const Status status = SumCpu(sum, parallel, isa);
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(y.back() == kGuard, "wrote behind the result");
  return y;
}

void Check(Isa isa, DataType type, std::int64_t outer, std::int64_t count,
           std::int64_t inner, float mean, std::mt19937& random) {
  const auto x = Numbers(type, outer * count * inner, mean, 1, random);
  const auto y = SumOf(x, outer, count, inner, type, isa, 1 + random() % 3);
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
             "%s [%ld, %ld, %ld] (%ld, %ld): %.9g, expected %.9g", Name(isa), outer,
             count, inner, o, i, actual, expected);
    }
  }
}

void TestSizes(Isa isa) {
  std::mt19937 random(1);
  for (DataType type : kTypes) {
    for (std::int64_t count : {0, 1, 7, 17, 255, 256, 257, 989}) {
      for (std::int64_t inner : {0, 1, 2, 7, 16, 17, 64, 111, 217}) {
        for (std::int64_t outer : {0, 1, 5}) {
          Check(isa, type, outer, count, inner, 3, random);
        }
      }
    }
  }
}

// Data that one FP32 sum would round away, or to integers.
void TestManyNumbers(Isa isa) {
  const std::vector<std::uint16_t> ones(1 << 25, FloatToHalf(1));
  EXPECT(SumOf(ones, 1, 1 << 25, 1, DataType::kHalf, isa)[0] == 0x1p25f, "%s", Name(isa));
  EXPECT(SumOf(ones, 1, 1 << 24, 2, DataType::kHalf, isa)[1] == 0x1p24f, "%s", Name(isa));
}

void TestANanStaysInItsSum(Isa isa) {
  for (std::int64_t inner : {1, 19}) {
    std::mt19937 random(2);
    auto x = Numbers(DataType::kHalf, 3 * 300 * inner, 0, 1, random);
    x[(300 + 299) * inner] = FloatToHalf(std::numeric_limits<float>::quiet_NaN());
    const auto y = SumOf(x, 3, 300, inner, DataType::kHalf, isa);
    for (std::int64_t i = 0; i < 3 * inner; ++i) {
      EXPECT(std::isnan(y[i]) == (i == inner), "%s at %ld", Name(isa), i);
    }
  }
}

void TestThreadsDoNotChangeBits(Isa isa) {
  std::mt19937 random(3);
  const auto x = Numbers(DataType::kHalf, 5 * 989 * 217, 0, 1, random);
  for (std::int64_t inner : {1, 217}) {
    const std::int64_t count = 989 * 217 / inner;
    EXPECT(SumOf(x, 5, count, inner, DataType::kHalf, isa, 1) ==
               SumOf(x, 5, count, inner, DataType::kHalf, isa, 3),
           "%s", Name(isa));
  }
}

void TestErrors() {
  Sum sum;
  sum.count = -1;
  EXPECT(SumCpu(sum).code == StatusCode::kInvalidArgument, "negative size");
  sum.count = 0;
  sum.type = DataType::kFloat;
  EXPECT(SumCpu(sum).code == StatusCode::kInvalidArgument, "FP32");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestSizes(isa);
    TestManyNumbers(isa);
    TestANanStaysInItsSum(isa);
    TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
