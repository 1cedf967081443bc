// Tests exponent_histogram_cpu.h against the exponents of double precision, on every
// instruction set of this machine.

#include "keras_mp/exponent_histogram_cpu.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "common/fixture.h"

namespace keras_mp {
namespace {

constexpr std::int64_t kGuard = -12345;
constexpr DataType kAllTypes[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat};

using Counts = std::vector<std::int64_t>;

const char* NameOf(DataType type) {
  if (type == DataType::kFloat) return "FP32";
  return type == DataType::kHalf ? "FP16" : "bfloat16";
}

// The layout of a format: its bits of the exponent and of the mantissa.
struct Layout {
  int exponent, mantissa;
};

Layout LayoutOf(DataType type) {
  if (type == DataType::kFloat) return {8, 23};
  return type == DataType::kHalf ? Layout{5, 10} : Layout{8, 7};
}

std::uint32_t InfinityOf(DataType type) {
  const auto [exponent, mantissa] = LayoutOf(type);
  return ((1u << exponent) - 1) << mantissa;
}

// The bin by the definition of the format, from a value in double precision, in which
// every number of the three formats is normal.
int BinOf(DataType type, std::uint32_t bits) {
  const auto [exponent_bits, mantissa_bits] = LayoutOf(type);
  const std::uint32_t magnitude = bits & ((1u << (exponent_bits + mantissa_bits)) - 1);
  const std::uint32_t infinity = InfinityOf(type);
  if (magnitude == infinity) return 278;
  if (magnitude > infinity) return 279;
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const std::uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double digits = exponent > 0 ? mantissa + (1u << mantissa_bits) : mantissa;
  const int least = (exponent > 0 ? exponent : 1) - bias - mantissa_bits;
  const double value = std::ldexp(digits, least);
  return value == 0 ? 0 : std::ilogb(value) + 150;
}

// The numbers of these bits in memory, `offset` elements behind an aligned address.
class Array {
 public:
  Array(DataType type, const std::vector<std::uint32_t>& bits, int offset = 0)
      : size_(type == DataType::kFloat ? 4 : 2),
        offset_(offset),
        bytes_((bits.size() + offset) * size_) {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      std::memcpy(bytes_.data() + (i + offset) * size_, &bits[i], size_);
    }
  }
  const void* data() const { return bytes_.data() + offset_ * size_; }

 private:
  std::size_t size_, offset_;
  std::vector<char> bytes_;
};

Counts Expected(DataType type, const std::vector<std::uint32_t>& bits) {
  Counts counts(kExponentBins);
  for (const std::uint32_t one : bits) ++counts[BinOf(type, one)];
  return counts;
}

Counts Found(Isa isa, DataType type, const void* x, std::int64_t size, int threads = 1) {
  Counts counts(kExponentBins + 1, kGuard);
  ExponentHistogram histogram;
  histogram.size = size;
  histogram.type = type;
  histogram.x = x;
  histogram.counts = counts.data();
  const Parallel parallel = {threads, &threads, RunOnThreads};
  const Status status = ExponentHistogramCpu(histogram, parallel, isa);
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(counts.back() == kGuard, "wrote behind the counts");
  counts.pop_back();
  return counts;
}

void Check(Isa isa, DataType type, const std::vector<std::uint32_t>& bits,
           const std::string& what, int offset = 0, int threads = 1) {
  const Array x(type, bits, offset);
  const auto size = static_cast<std::int64_t>(bits.size());
  const Counts found = Found(isa, type, x.data(), size, threads);
  const Counts expected = Expected(type, bits);
  for (int bin = 0; bin < kExponentBins; ++bin) {
    EXPECT(found[bin] == expected[bin], "%s %s, %s, %ld at %d, bin %d: %ld, expected %ld",
           Name(isa), NameOf(type), what.c_str(), size, offset, bin, found[bin],
           expected[bin]);
  }
}

void CheckOne(Isa isa, DataType type, std::uint32_t bits) {
  const Counts found = Found(isa, type, Array(type, {bits}).data(), 1);
  const int bin = BinOf(type, bits);
  const auto others = std::count(found.begin(), found.end(), 0);
  EXPECT(found[bin] == 1 && others == kExponentBins - 1, "%s %s %#x, bin %d", Name(isa),
         NameOf(type), bits, bin);
}

// Each alone, and all together in a random order.
void CheckEach(Isa isa, DataType type, std::vector<std::uint32_t> bits) {
  for (const std::uint32_t one : bits) CheckOne(isa, type, one);
  std::shuffle(bits.begin(), bits.end(), std::mt19937(1));
  Check(isa, type, bits, "all together");
}

void TestEveryNumberOf16Bits(Isa isa) {
  std::vector<std::uint32_t> bits(1 << 16);
  for (std::uint32_t i = 0; i < bits.size(); ++i) bits[i] = i;
  for (DataType type : kTypes) CheckEach(isa, type, bits);
}

// Every power of two with its neighbours, and NaN with many payloads, of both signs.
std::vector<std::uint32_t> EdgesOfFloat() {
  std::vector<std::uint32_t> bits = {0};
  for (int bit = 0; bit < 23; ++bit) {
    const std::uint32_t power = 1u << bit;  // subnormal
    bits.insert(bits.end(), {power - 1, power, power + 1});
    bits.insert(bits.end(), {0x7f800000u + power, 0x7f800000u + power - 1});
  }
  for (std::uint32_t exponent = 1; exponent <= 255; ++exponent) {
    const std::uint32_t power = exponent << 23;
    bits.insert(bits.end(), {power - 1, power, power + 1});
  }
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t mantissa = random() & 0x7fffffu;
    bits.insert(bits.end(), {mantissa, 0x7f800000u | mantissa});
  }
  for (std::size_t i = 0, size = bits.size(); i < size; ++i) {
    bits.push_back(bits[i] | 0x80000000u);
  }
  return bits;
}

std::uint32_t BitsIn(DataType type, float x) {
  return type == DataType::kFloat ? BitsOf(x) : To16(type, x);
}

// Tensors by name, of which each takes another way through the kernel.
std::vector<std::uint32_t> Draw(const std::string& kind, DataType type,
                                std::int64_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::normal_distribution<float> normal;
  const std::uint32_t all = type == DataType::kFloat ? ~0u : 0xffffu;
  std::vector<std::uint32_t> bits(size);
  for (auto& one : bits) {
    if (kind == "one exponent") one = BitsIn(type, 1.5f);
    if (kind == "normal") one = BitsIn(type, normal(random));
    if (kind == "small") one = BitsIn(type, 1e-5f * normal(random));
    if (kind == "half zeros") one = BitsIn(type, std::max(0.0f, normal(random)));
    if (kind == "any bits") one = random() & all;
    if (kind == "infinities") one = InfinityOf(type);
    if (kind == "NaN") one = InfinityOf(type) + 1;
    if (kind == "subnormals") one = 1 + random() % 100;
  }
  return bits;
}

void TestSizes(Isa isa) {
  for (DataType type : kAllTypes) {
    for (const char* kind : {"zeros", "one exponent", "normal", "small", "half zeros",
                             "any bits", "infinities", "NaN", "subnormals"}) {
      for (std::int64_t size = 0; size <= 200; ++size) {
        Check(isa, type, Draw(kind, type, size), kind, static_cast<int>(size % 9));
      }
      // Around the ends of blocks and of the chunks of a thread.
      for (std::int64_t size : {2047, 2049, 4095, 4096, 4097, 8193, 65535, 65537}) {
        for (int offset : {0, 1, 3}) {
          Check(isa, type, Draw(kind, type, size), kind, offset);
        }
      }
      Check(isa, type, Draw(kind, type, 300'007), kind, 1, /*threads=*/3);
    }
  }
}

// One number that is unlike all others, at any place of a block.
void TestOneAmongMany(Isa isa) {
  for (DataType type : kAllTypes) {
    const std::uint32_t infinity = InfinityOf(type);
    for (std::uint32_t one : {0u, 1u, infinity - 1, infinity, infinity + 1}) {
      for (const char* kind : {"zeros", "one exponent", "normal"}) {
        auto bits = Draw(kind, type, 4099);
        for (std::size_t at = 0; at < bits.size(); at += 241) {
          const std::uint32_t before = bits[at];
          bits[at] = one;
          Check(isa, type, bits, std::string(kind) + " but one");
          bits[at] = before;
        }
      }
    }
  }
}

void TestManyEqualNumbers(Isa isa) {
  constexpr std::int64_t kSize = (1 << 24) + 1;  // no FP32 number counts that far
  const std::vector<std::uint16_t> ones(kSize, FloatToHalf(1));
  for (int threads : {1, 3}) {
    const Counts found = Found(isa, DataType::kHalf, ones.data(), kSize, threads);
    EXPECT(found[150] == kSize, "%s: %ld", Name(isa), found[150]);
  }
}

// TensorFlow's threads flush subnormal numbers to zero.
void TestFlushedSubnormals(Isa isa) {
#ifdef __x86_64__
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero | kDenormalsAreZero);
  for (DataType type : kAllTypes) {
    const Array x(type, Draw("subnormals", type, 4099));
    const Counts found = Found(isa, type, x.data(), 4099);
    EXPECT(found[0] == 0, "%s %s: %ld zeros", Name(isa), NameOf(type), found[0]);
  }
  _mm_setcsr(before);
#else
  (void)isa;
#endif
}

void TestErrors() {
  ExponentHistogram histogram;
  histogram.size = -1;
  EXPECT(ExponentHistogramCpu(histogram).code == StatusCode::kInvalidArgument,
         "negative size");
  histogram.size = 0;
  EXPECT(ExponentHistogramCpu(histogram, {}, Isa::kUnknown).code ==
             StatusCode::kUnimplemented,
         "unknown instruction set");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestEveryNumberOf16Bits(isa);
    CheckEach(isa, DataType::kFloat, EdgesOfFloat());
    TestSizes(isa);
    TestOneAmongMany(isa);
    TestManyEqualNumbers(isa);
    TestFlushedSubnormals(isa);
  }
  return Report();
}
