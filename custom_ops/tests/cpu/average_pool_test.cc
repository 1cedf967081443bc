// Tests average_pool_cpu.h against double precision, on every instruction set of this
// machine.

#include "keras_mp/average_pool_cpu.h"

#include <cmath>
#include <random>
#include <vector>

#include "common/ceil_div.h"
#include "common/fixture.h"

namespace keras_mp {
namespace {

constexpr std::uint16_t kGuard = 0xa5a5;

// The windows of TensorFlow, with padding "valid" or "same".
PooledDimension Dimension(std::int64_t size, std::int64_t window, std::int64_t stride,
                          bool same) {
  PooledDimension d;
  d.size = size;
  d.window = window;
  d.stride = stride;
  d.pooled = same ? CeilDiv(size, stride) : (size - window) / stride + 1;
  if (same) {
    const std::int64_t outside = (d.pooled - 1) * stride + window - size;
    d.before = std::max<std::int64_t>(0, outside) / 2;
  }
  return d;
}

// The weight of element i in window o.
double Share(const PooledDimension& d, std::int64_t o, std::int64_t i) {
  const std::int64_t begin = o * d.stride - d.before;
  const std::int64_t first = std::max<std::int64_t>(begin, 0);
  const std::int64_t end = std::min(begin + d.window, d.size);
  return i >= first && i < end ? 1.0 / static_cast<double>(end - first) : 0;
}

struct Case {
  AveragePool pool;
  std::vector<std::uint16_t> from, to;

  Case(std::int64_t batch, std::int64_t channels, const PooledDimension (&dimensions)[3],
       DataType type) {
    pool.batch = batch;
    pool.channels = channels;
    for (int d = 0; d < 3; ++d) pool.dimensions[d] = dimensions[d];
    pool.type = type;
  }

  std::int64_t Size(bool pooled) const {
    std::int64_t size = pool.batch * pool.channels;
    for (const auto& d : pool.dimensions) size *= pooled ? d.pooled : d.size;
    return size;
  }

  void Run(bool gradient, Isa isa, int threads, std::mt19937& random) {
    from = Numbers(pool.type, Size(gradient), 1, 1, random);
    to.assign(Size(!gradient) + 1, kGuard);
    pool.from = from.data();
    pool.to = to.data();
    const Parallel parallel = {threads, &threads, RunOnThreads};
    const Status status = gradient ? AveragePoolGradientCpu(pool, parallel, isa)
                                   : AveragePoolCpu(pool, parallel, isa);
    EXPECT(status.ok(), "%s", status.message);
    EXPECT(to.back() == kGuard, "wrote behind the result");
  }

  // Compares with the sum over all pairs of an element and a window.
  void Check(bool gradient, Isa isa) const {
    const auto& [a, b, c] = pool.dimensions;
    std::vector<double> expected(to.size() - 1), magnitude(to.size() - 1);
    const auto add = [&](std::int64_t x, std::int64_t y, double share) {
      for (std::int64_t channel = 0; channel < pool.channels; ++channel) {
        const std::int64_t i = x * pool.channels + channel, o = y * pool.channels + channel;
        const double number = share * From16(pool.type, from[gradient ? o : i]);
        expected[gradient ? i : o] += number;
        magnitude[gradient ? i : o] += std::abs(number);
      }
    };
    for (std::int64_t n = 0; n < pool.batch; ++n) {
      for (std::int64_t i = 0; i < a.size * b.size * c.size; ++i) {
        for (std::int64_t o = 0; o < a.pooled * b.pooled * c.pooled; ++o) {
          const double share =
              Share(a, o / c.pooled / b.pooled, i / c.size / b.size) *
              Share(b, o / c.pooled % b.pooled, i / c.size % b.size) *
              Share(c, o % c.pooled, i % c.size);
          if (share == 0) continue;
          add(n * a.size * b.size * c.size + i, n * a.pooled * b.pooled * c.pooled + o,
              share);
        }
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double actual = From16(pool.type, to[i]);
      // A sum has at most 27 weighted elements here, each rounded 4 times.
      const double error = 31 * 0x1p-24 * magnitude[i];
      EXPECT(std::abs(actual - expected[i]) <= Rounded(pool.type, expected[i], error),
             "%s gradient %d channels %ld at %zu: %.9g, expected %.9g", Name(isa),
             gradient, pool.channels, i, actual, expected[i]);
    }
  }
};

void TestWindows(Isa isa) {
  std::mt19937 random(1);
  for (bool same : {false, true}) {
    for (std::int64_t channels : {1, 7, 17, 64}) {
      for (std::int64_t window : {1, 2, 3}) {
        for (std::int64_t stride : {1, 2, 3, 4}) {
          const DataType type = random() % 2 ? DataType::kHalf : DataType::kBfloat16;
          Case one(2, channels,
                   {Dimension(1 + random() % 3, 1, 1, same),
                    Dimension(3 + random() % 4, window, stride, same),
                    Dimension(3 + random() % 6, 3, 1 + random() % 3, same)},
                   type);
          for (bool gradient : {false, true}) {
            one.Run(gradient, isa, 1 + random() % 3, random);
            one.Check(gradient, isa);
          }
        }
      }
    }
  }
}

// The sum of ones is exact, and divided once.
void TestTheMeanOfManyOnes(Isa isa) {
  std::mt19937 random(4);
  Case one(1, 9, {PooledDimension{}, PooledDimension{}, Dimension(100'000, 100'000, 1, false)},
           DataType::kHalf);
  one.Run(false, isa, 1, random);
  std::fill(one.from.begin(), one.from.end(), FloatToHalf(1));
  EXPECT(AveragePoolCpu(one.pool, {}, isa).ok(), "%s", Name(isa));
  for (int i = 0; i < 9; ++i) EXPECT(one.to[i] == FloatToHalf(1), "%s", Name(isa));
}

void TestThreadsDoNotChangeBits(Isa isa) {
  std::vector<std::uint16_t> results[2];
  for (int threads : {1, 3}) {
    std::mt19937 random(2);
    Case one(3, 64, {PooledDimension{}, Dimension(30, 3, 2, true), Dimension(30, 3, 2, true)},
             DataType::kHalf);
    one.Run(false, isa, threads, random);
    results[threads / 2] = one.to;
  }
  EXPECT(results[0] == results[1], "%s", Name(isa));
}

void TestNothing(Isa isa) {
  std::mt19937 random(3);
  for (const auto& [batch, channels] : {std::pair{0, 3}, std::pair{3, 0}}) {
    Case one(batch, channels, {PooledDimension{}, PooledDimension{}, Dimension(4, 2, 2, false)},
             DataType::kHalf);
    one.Run(false, isa, 2, random);
    one.Run(true, isa, 2, random);
  }
}

void TestErrors() {
  AveragePool pool;
  pool.type = DataType::kFloat;
  EXPECT(AveragePoolCpu(pool).code == StatusCode::kInvalidArgument, "FP32");
  pool.type = DataType::kHalf;
  pool.dimensions[1].stride = 0;
  EXPECT(AveragePoolCpu(pool).code == StatusCode::kInvalidArgument, "no stride");
  pool.dimensions[1] = {3, 4, 1, 1, 0};
  EXPECT(AveragePoolGradientCpu(pool).code == StatusCode::kInvalidArgument,
         "a window outside of x");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestWindows(isa);
    TestTheMeanOfManyOnes(isa);
    TestThreadsDoNotChangeBits(isa);
    TestNothing(isa);
  }
  return Report();
}
