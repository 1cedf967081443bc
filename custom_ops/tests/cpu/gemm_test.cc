// Tests gemm_cpu.h against double precision, on every instruction set of this machine.
//
// Tolerance of an element: one rounding of the output (2^-11 of it for half, 2^-8 for
// bfloat16, 2^-24 for FP32; at least half the ulp of subnormal numbers), plus the bound of
// the accumulator, k * 2^-24 * sum |a| |b|, and of the dot products of bfloat16 that flush
// to 0, plus two FP32 roundings for alpha and bias, plus ActivationError.

#include "keras_mp/gemm_cpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/fixture.h"
#include "cpu/gemm/gemm_kernel_simd.h"
#include "cpu/gemm_models.h"
#include "cpu/kernels.h"

namespace keras_mp {
namespace {

constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu,
                                       Activation::kTanh, Activation::kSigmoid,
                                       Activation::kGelu};

constexpr DataType kInputs[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat};

double ToDouble(DataType type, const void* data, std::int64_t i) {
  if (type == DataType::kFloat) return static_cast<const float*>(data)[i];
  return From16(type, static_cast<const std::uint16_t*>(data)[i]);
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
  }
  return x;
}

// The derivative of gelu.
double GeluSlope(double x) {
  const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  return 0.5 * std::erfc(-x * std::sqrt(0.5)) + x * density;
}

// The relative error of an activation: 2^-20, and for gelu of x, whose e^(-x^2 / 2)
// magnifies the rounding of x^2, another x^2 * 2^-22.
double ActivationError(Activation activation, double x) {
  if (activation == Activation::kNone) return 0;
  return 0x1p-20 + (activation == Activation::kGelu ? x * x * 0x1p-22 : 0);
}

// The kernel under test.
struct Subject {
  const char* name;
  const GemmKernel* half;
  const GemmKernel* bfloat16;
  const GemmKernel* single;
  bool is_emulated = false;  // which takes long
};

Status Multiply(const Subject& subject, const Gemm& gemm, const Parallel& parallel) {
  const GemmKernel& kernel = gemm.input == DataType::kHalf       ? *subject.half
                             : gemm.input == DataType::kBfloat16 ? *subject.bfloat16
                                                                 : *subject.single;
  return GemmWith(kernel, gemm, parallel);
}

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects;
  for (Isa isa : SupportedIsas()) {
    const Kernels& kernels = *KernelsOf(isa);
    subjects.push_back(
        {Name(isa), kernels.half_gemm, kernels.bfloat16_gemm, kernels.float_gemm});
  }
  subjects.push_back({"a model of dot products", &kHalfGemm<DotModel>,
                      &kBfloat16Gemm<DotModel>, &kFloatGemm<DotModel>, true});
  subjects.push_back({"a model of AMX", &kHalfGemm<AmxModel>, &kBfloat16Gemm<AmxModel>,
                      &kFloatGemm<AmxModel>, true});
  subjects.push_back({"a model of AMX without FP16", &kHalfGemm<AmxBf16Model>,
                      &kBfloat16Gemm<AmxBf16Model>, &kFloatGemm<AmxBf16Model>, true});
  return subjects;
}

// A product with its matrices, laid out with gaps and off alignment, and a guard around
// C that must not be written.
class Case {
 public:
  Case(std::int64_t m, std::int64_t n, std::int64_t k, std::mt19937& random)
      : random_(random) {
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
  }

  void Allocate() {
    const std::int64_t gap = Pick(3), offset = Pick(2);
    gemm.lda = (gemm.transpose_a ? gemm.m : gemm.k) + gap;
    gemm.ldb = (gemm.transpose_b ? gemm.k : gemm.n) + gap;
    gemm.ldc = gemm.n + gap;
    gemm.stride_a = (gemm.transpose_a ? gemm.k : gemm.m) * gemm.lda;
    gemm.stride_b = (gemm.transpose_b ? gemm.n : gemm.k) * gemm.ldb;
    gemm.stride_c = gemm.m * gemm.ldc;
    if (gemm.batch > 1 && Pick(2)) gemm.stride_b = 0;
    gemm.a =
        a_.Draw(gemm.input, gemm.batch * gemm.stride_a, offset, exponent_a, random_);
    const std::int64_t size_b = gemm.batch * gemm.stride_b + gemm.stride_b +
                                (gemm.transpose_b ? gemm.n : gemm.k) * gemm.ldb;
    gemm.b = b_.Draw(TypeOfB(), size_b, offset, exponent_b, random_);
    c_.assign((gemm.batch * gemm.stride_c + 2 * kGuard) * Size(), kUnwritten);
    gemm.c = c_.data() + kGuard * Size();
  }

  void SetA(std::int64_t i, std::int64_t p, float x) {
    const std::int64_t at = gemm.transpose_a ? p * gemm.lda + i : i * gemm.lda + p;
    void* a = const_cast<void*>(gemm.a);
    if (gemm.input == DataType::kFloat) {
      static_cast<float*>(a)[at] = x;
    } else {
      static_cast<std::uint16_t*>(a)[at] = To16(gemm.input, x);
    }
  }

  void AddBias(DataType type) {
    gemm.bias_type = type;
    gemm.bias = gemm.n == 0 ? nullptr : bias_.Draw(type, gemm.n, 0, 0, random_);
  }

  // After Allocate: makes it a gradient, whose sums start at kFirstSum.
  void AddUpstream(DataType type) {
    gemm.activation = Activation::kGelu;
    gemm.upstream_type = type;
    gemm.upstream =
        upstream_.Draw(type, gemm.batch * gemm.stride_c + 1, 0, 0, random_);
    ClearResult();
  }

  void Check(const Subject& subject, int threads) {
    const Parallel parallel = {threads, &threads, RunOnThreads};
    const Status status = Multiply(subject, gemm, parallel);
    EXPECT(status.ok(), "%s", status.message);
    std::vector<Sum> sums(gemm.n);
    for (std::int64_t index = 0; index < gemm.batch; ++index) {
      for (std::int64_t i = 0; i < gemm.m; ++i) {
        for (std::int64_t j = 0; j < gemm.n; ++j) {
          const auto [expected, error] = CheckElement(subject, index, i, j);
          sums[j].Add(expected, error);
        }
      }
    }
    CheckGuard();
    if (gemm.upstream != nullptr) CheckSums(subject, sums);
  }

  // Elements of one row, of the first product.
  void CheckRow(const Subject& subject, std::int64_t i) {
    for (std::int64_t j = 0; j < gemm.n; ++j) CheckElement(subject, 0, i, j);
  }

  void ClearResult() {
    std::fill(c_.begin(), c_.end(), kUnwritten);
    if (gemm.upstream == nullptr) return;
    sums_.assign(gemm.n + 1, kFirstSum);
    gemm.column_sums = sums_.data();
  }

  const std::vector<unsigned char>& result() const { return c_; }
  const std::vector<float>& sums() const { return sums_; }

  Gemm gemm;
  int exponent_a = 0, exponent_b = 0;  // of the elements of A and B

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr unsigned char kUnwritten = 0xa5;
  static constexpr float kFirstSum = 2;

  struct Sum {
    double total = kFirstSum, magnitude = kFirstSum, error = 0;

    void Add(double term, double error_of_term) {
      total += term;
      magnitude += std::abs(term);
      error += error_of_term;
    }
  };

  std::int64_t Pick(int count) { return static_cast<std::int64_t>(random_() % count); }

  std::int64_t Size() const { return gemm.output == DataType::kFloat ? 4 : 2; }

  // Normal numbers of a type, `offset` elements from the start of their memory.
  struct Elements {
    std::vector<std::uint16_t> halves;
    std::vector<float> floats;

    const void* Draw(DataType type, std::int64_t count, std::int64_t offset, int exponent,
                     std::mt19937& random) {
      const float unit = std::ldexp(1.0f, exponent);
      if (type == DataType::kFloat) {
        floats = Floats(offset + count, 0.0f, unit, random);
        return floats.data() + offset;
      }
      halves = Numbers(type, offset + count, 0.0f, unit, random);
      return halves.data() + offset;
    }
  };

  DataType TypeOfB() const { return gemm.rounds_b ? DataType::kFloat : gemm.input; }

  // Returns the number before it is rounded, and how far FP32 may be from it.
  std::pair<double, double> CheckElement(const Subject& subject, std::int64_t index,
                                         std::int64_t i, std::int64_t j) {
    double sum = 0, magnitude = 0, flushed = 0;
    for (std::int64_t p = 0; p < gemm.k; ++p) {
      const std::int64_t at_a =
          index * gemm.stride_a +
          (gemm.transpose_a ? p * gemm.lda + i : i * gemm.lda + p);
      const std::int64_t at_b =
          index * gemm.stride_b +
          (gemm.transpose_b ? j * gemm.ldb + p : p * gemm.ldb + j);
      const double x = ToDouble(gemm.input, gemm.a, at_a), y = B(at_b);
      sum += x * y;
      magnitude += std::abs(x * y);
      if (gemm.input == DataType::kBfloat16) {
        flushed += 0x1p-126 * (1 + std::abs(x) + std::abs(y));
      }
    }
    const double alpha = gemm.alpha ? *gemm.alpha : 1;
    const double bias = gemm.bias ? ToDouble(gemm.bias_type, gemm.bias, j) : 0;
    const double linear = alpha * sum + bias;
    const std::int64_t at_c = index * gemm.stride_c + i * gemm.ldc + j;
    const bool is_gradient = gemm.upstream != nullptr;
    const double upstream =
        is_gradient ? ToDouble(gemm.upstream_type, gemm.upstream, at_c) : 1;
    const double expected =
        is_gradient ? upstream * GeluSlope(linear) : Activate(gemm.activation, linear);
    const double actual = ToDouble(gemm.output, gemm.c, at_c);
    if (!std::isfinite(expected)) {
      const bool same = std::isnan(expected) ? std::isnan(actual) : actual == expected;
      EXPECT(same, "%s (%ld, %ld): %g, expected %g", subject.name, i, j, actual, expected);
      return {expected, 0};
    }
    const double unit = gemm.output == DataType::kHalf       ? 0x1p-11
                        : gemm.output == DataType::kBfloat16 ? 0x1p-8
                                                             : 0x1p-24;
    const double smallest = gemm.output == DataType::kHalf ? 0x1p-25 : 0x1p-127;
    // No activation here has a slope above 1.13, which is that of gelu, and the slope of
    // that is below 0.8.
    const double in_sum = gemm.k * 0x1p-24 * magnitude + flushed;
    const double slope = is_gradient ? 0.8 : 1.13;
    const double before = slope * (std::abs(alpha) * in_sum +
                                   0x1p-23 * (std::abs(linear) + std::abs(bias)));
    const double error =
        is_gradient
            ? std::abs(upstream) * (before + 0x1p-20) + 0x1p-24 * std::abs(expected)
            : before + ActivationError(gemm.activation, linear) * std::abs(expected);
    const double tolerance =
        error + std::max(unit * (std::abs(expected) + error), smallest);
    EXPECT(std::abs(actual - expected) <= tolerance,
           "%s m=%ld n=%ld k=%ld ta=%d tb=%d in=%d out=%d act=%d (%ld, %ld): %.9g, "
           "expected %.9g within %.3g",
           subject.name, gemm.m, gemm.n, gemm.k, gemm.transpose_a, gemm.transpose_b,
           static_cast<int>(gemm.input), static_cast<int>(gemm.output),
           static_cast<int>(gemm.activation), i, j, actual, expected, tolerance);
    return {expected, error};
  }

  void CheckSums(const Subject& subject, const std::vector<Sum>& sums) const {
    for (std::int64_t j = 0; j < gemm.n; ++j) {
      const auto& [total, magnitude, error] = sums[j];
      if (!std::isfinite(total)) {
        EXPECT(!std::isfinite(sums_[j]), "%s sum %ld: %g", subject.name, j, sums_[j]);
        continue;
      }
      // Of 64 rows each in FP32, to which double is added up; and what was there before.
      const double tolerance = error + (64 + 2) * 0x1p-24 * (magnitude + error);
      EXPECT(std::abs(sums_[j] - total) <= tolerance,
             "%s m=%ld n=%ld sum %ld: %.9g, expected %.9g within %.3g", subject.name,
             gemm.m, gemm.n, j, sums_[j], total, tolerance);
    }
    EXPECT(sums_[gemm.n] == kFirstSum, "%s: wrote beyond the sums", subject.name);
  }

  // Element `at` of B as the product reads it.
  double B(std::int64_t at) const {
    const auto x = static_cast<float>(ToDouble(TypeOfB(), gemm.b, at));
    return gemm.input == DataType::kFloat ? x : From16(gemm.input, To16(gemm.input, x));
  }

  void CheckGuard() {
    const auto* begin = reinterpret_cast<const unsigned char*>(gemm.c);
    for (std::size_t at = 0; at < c_.size(); ++at) {
      const std::int64_t element = (c_.data() + at - begin) / Size();
      const bool before = c_.data() + at < begin;
      const bool after = element >= gemm.batch * gemm.stride_c;
      const bool gap = !before && !after && element % gemm.ldc >= gemm.n;
      if (!before && !after && !gap) continue;
      EXPECT(c_[at] == kUnwritten, "m=%ld n=%ld k=%ld wrote outside of C", gemm.m,
             gemm.n, gemm.k);
    }
  }

  std::mt19937& random_;
  Elements a_, b_, bias_, upstream_;
  std::vector<unsigned char> c_;
  std::vector<float> sums_;
};

void TestConversions() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT(std::isnan(HalfToFloat(FloatToHalf(value))), "NaN %04x", bits);
      EXPECT(std::isnan(Bfloat16ToFloat(FloatToBfloat16(value))), "NaN %04x", bits);
      continue;
    }
    EXPECT(FloatToHalf(value) == half, "%04x came back as %04x", bits,
           FloatToHalf(value));
    if ((bits & 0x7fff) >= 0x7c00) continue;
    // A tie goes to the even neighbour; a little less rounds down.
    const float next = (bits & 0x7fff) == 0x7bff
                           ? std::copysign(65536.0f, value)
                           : HalfToFloat(static_cast<std::uint16_t>(half + 1));
    const float middle = (value + next) / 2;
    EXPECT(FloatToHalf(middle) == half + (half & 1), "middle above %04x", bits);
    EXPECT(FloatToHalf(std::nextafter(middle, value)) == half, "below that %04x", bits);
  }
  // A NaN that no bit of a 16-bit format shows.
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u}) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT(std::isnan(HalfToFloat(FloatToHalf(value))), "NaN %08x", bits);
    EXPECT(std::isnan(Bfloat16ToFloat(FloatToBfloat16(value))), "NaN %08x", bits);
  }
  EXPECT(FloatToBfloat16(1.00390625f) == 0x3f80, "a tie goes to even");
  EXPECT(FloatToBfloat16(1.01171875f) == 0x3f82, "a tie goes to even");
}

void TestSizes(const Subject& subject) {
  const std::int64_t sizes[] = {0, 1, 7, 16, 17, 64, 111, 217, 989};
  std::mt19937 random(1);
  for (std::int64_t m : sizes) {
    for (std::int64_t n : sizes) {
      // Every third k, so that each pair of sizes meets small and large ones in turn.
      for (std::size_t at = (m + n) % 3; at < std::size(sizes); at += 3) {
        const std::int64_t k = sizes[at];
        if (m * n * k > 3'000'000) continue;
        Case one(m, n, k, random);
        one.gemm.transpose_a = random() % 2;
        one.gemm.transpose_b = random() % 2;
        one.gemm.input = one.gemm.output = kInputs[random() % 3];
        if (random() % 2) one.gemm.output = DataType::kFloat;
        one.gemm.rounds_b = random() % 3 == 0;
        one.Allocate();
        one.Check(subject, 2);
      }
    }
  }
}

void TestOptions(const Subject& subject) {
  std::mt19937 random(2);
  for (DataType input : kInputs) {
    for (DataType output : {input, DataType::kFloat}) {
      for (Activation activation : kActivations) {
        for (int bits = 0; bits < 16; ++bits) {
          Case one(1 + random() % 40, 1 + random() % 70, random() % 90, random);
          one.gemm.transpose_a = bits & 1;
          one.gemm.transpose_b = bits & 2;
          one.gemm.input = input;
          one.gemm.output = output;
          one.gemm.activation = activation;
          one.gemm.batch = bits & 4 ? 3 : 1;
          one.gemm.rounds_b = random() % 3 == 0;
          const float alpha = bits & 8 ? 0.25f : 1.0f;
          one.gemm.alpha = bits & 8 ? &alpha : nullptr;
          one.Allocate();
          if (bits % 3) one.AddBias(bits % 3 == 1 ? input : DataType::kFloat);
          one.Check(subject, 1 + random() % 3);
        }
      }
    }
  }
}

float MultiplyOne(const Subject& subject, const std::vector<float>& a,
                  const std::vector<float>& b, DataType output,
                  Activation activation = Activation::kNone) {
  std::vector<std::uint16_t> halves_a, halves_b;
  for (float x : a) halves_a.push_back(FloatToHalf(x));
  for (float x : b) halves_b.push_back(FloatToHalf(x));
  float single = 0;
  std::uint16_t half = 0;
  Gemm gemm;
  gemm.m = gemm.n = gemm.ldb = gemm.ldc = 1;
  gemm.k = gemm.lda = static_cast<std::int64_t>(a.size());
  gemm.a = halves_a.data();
  gemm.b = halves_b.data();
  gemm.output = output;
  gemm.activation = activation;
  gemm.c = output == DataType::kFloat ? static_cast<void*>(&single) : &half;
  EXPECT(Multiply(subject, gemm, {}).ok(), "%s", subject.name);
  return output == DataType::kFloat ? single : HalfToFloat(half);
}

// One row has an inf, whose tile has rows before and after it.
void TestInfAmongNumbers(const Subject& subject) {
  for (int bits = 0; bits < 16; ++bits) {
    std::mt19937 random(9);
    Case one(700, 20, 33, random);
    one.gemm.input = bits & 8 ? DataType::kFloat : DataType::kHalf;
    one.gemm.transpose_a = bits & 1;
    one.gemm.transpose_b = bits & 2;
    one.gemm.rounds_b = bits & 4;
    one.gemm.output = DataType::kFloat;
    one.Allocate();
    one.SetA(345, 7, std::numeric_limits<float>::infinity());
    one.Check(subject, 1);
  }
}

void TestSpecialValues(const Subject& subject) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto both = [&](std::vector<float> a, std::vector<float> b, float half,
                        float single) {
    for (DataType output : {DataType::kHalf, DataType::kFloat}) {
      const float actual = MultiplyOne(subject, a, b, output);
      const float expected = output == DataType::kHalf ? half : single;
      const bool same =
          std::isnan(expected) ? std::isnan(actual) : actual == expected;
      EXPECT(same, "%s: %g, expected %g", subject.name, actual, expected);
    }
  };
  both({1, nan}, {1, 1}, nan, nan);
  both({0, 1}, {inf, 1}, nan, nan);
  both({inf, 1}, {1, -inf}, nan, nan);
  both({inf, 1}, {2, 1}, inf, inf);
  both({256, 0}, {256, 0}, inf, 65536);  // beyond 65504 only in half
  both({32736, 32768}, {1, 1}, 65504, 65504);
  both({32752, 32768}, {1, 1}, inf, 65520);  // a tie, and 65504 is odd
  both({0x1p-12f, 0}, {0x1p-12f, 0}, 0x1p-24f, 0x1p-24f);  // the smallest subnormal
  both({0x1p-24f, 0}, {0x1p-24f, 0}, 0, 0x1p-48f);         // exact in FP32
  both({2048, 1, -2048}, {1, 1, 1}, 1, 1);                 // half cannot hold 2049
  both({300, 300}, {300, -300}, 0, 0);  // 90,000 is beyond half, and cancels
  for (Activation activation : kActivations) {
    const float actual = MultiplyOne(subject, {nan}, {1}, DataType::kHalf, activation);
    EXPECT(std::isnan(actual), "%s: NaN became %g", subject.name, actual);
  }
  // 4096 terms of 1/8: an accumulator in half stops at 256.
  const std::vector<float> ones(4096, 1.0f), eighths(4096, 0.125f);
  both(ones, eighths, 512, 512);
}

// Elements about 2^-126, and sums that fall below it: the tolerance covers what a dot
// product flushes to 0, and no more.
void TestSubnormalBfloat16(const Subject& subject) {
  std::mt19937 random(4);
  for (const auto &[exponent_a, exponent_b] :
       {std::pair{-130, 0}, {0, -130}, {-126, 3}, {-70, -60}, {-66, -66}}) {
    for (const std::int64_t m : {3, 60}) {  // skinny, and packed
      for (int bits = 0; bits < 4; ++bits) {
        Case one(m, 50, 37, random);
        one.gemm.input = DataType::kBfloat16;
        one.gemm.output = DataType::kFloat;
        one.gemm.transpose_a = bits & 1;
        one.gemm.transpose_b = bits & 2;
        one.exponent_a = exponent_a;
        one.exponent_b = exponent_b;
        one.Allocate();
        one.Check(subject, 2);
      }
    }
  }
}

// A model of an instruction has its bits: with packed B, the order of a sum does not
// depend on the vector width.
void TestModel(Isa isa, DataType input, GemmKernel model) {
  if (!IsSupported(isa)) {
    std::printf("skipped: the model of %s, which this machine lacks\n", Name(isa));
    return;
  }
  const Kernels& kernels = *KernelsOf(isa);
  GemmKernel machine =
      input == DataType::kHalf ? *kernels.half_gemm : *kernels.bfloat16_gemm;
  for (GemmKernel* kernel : {&machine, &model}) {
    kernel->blocking.steps = 64;
    kernel->blocking.skinny_rows_row_major_b = 0;
    kernel->blocking.skinny_rows_column_major_b = 0;
  }
  for (const int exponent : {0, -63, -66, 63}) {  // also below 2^-126, and beyond 2^128
    for (int bits = 0; bits < 4; ++bits) {
      std::mt19937 random(5);
      Case one(70, 45, 301, random);
      one.gemm.input = input;
      one.gemm.output = DataType::kFloat;
      one.gemm.transpose_a = bits & 1;
      one.gemm.transpose_b = bits & 2;
      one.exponent_a = one.exponent_b =
          input == DataType::kHalf ? exponent / 5 : exponent;
      one.Allocate();
      EXPECT(GemmWith(machine, one.gemm, {}).ok(), "exponent %d", exponent);
      const auto expected = one.result();
      one.ClearResult();
      EXPECT(GemmWith(model, one.gemm, {}).ok(), "exponent %d", exponent);
      EXPECT(one.result() == expected, "%s: other bits at 2^%d, layout %d", Name(isa),
             exponent, bits);
    }
  }
}

// Several blocks of rows and along k, whose last ones are no multiples of anything.
void TestBlocks(const Subject& subject) {
  GemmKernel half = *subject.half, bfloat16 = *subject.bfloat16, single = *subject.single;
  for (GemmKernel* kernel : {&half, &bfloat16, &single}) kernel->blocking.steps = 20;
  const Subject changed = {subject.name, &half, &bfloat16, &single};
  for (DataType input : kInputs) {
    for (int bits = 0; bits < 4; ++bits) {
      std::mt19937 random(7);
      Case one(483, 99, 131, random);
      one.gemm.input = input;
      one.gemm.output = DataType::kFloat;
      one.gemm.transpose_a = bits & 1;
      one.gemm.transpose_b = bits & 2;
      one.Allocate();
      one.Check(changed, 2);
    }
  }
}

// GemmCpu selects the kernel by instruction set and input type.
void TestDispatch() {
  for (const Subject& subject : Subjects()) {
    for (Isa isa : SupportedIsas()) {
      if (std::strcmp(subject.name, Name(isa)) != 0) continue;
      for (DataType input : kInputs) {
        std::mt19937 random(6);
        Case one(20, 30, 401, random);
        one.gemm.input = input;
        one.gemm.output = DataType::kFloat;
        one.Allocate();
        EXPECT(Multiply(subject, one.gemm, {}).ok(), "%s", subject.name);
        const auto expected = one.result();
        one.ClearResult();
        EXPECT(GemmCpu(one.gemm, {}, isa).ok(), "%s", subject.name);
        EXPECT(one.result() == expected, "%s: another kernel", subject.name);
      }
    }
  }
}

void TestEmptySum(const Subject& subject) {
  const float bias[2] = {1, -2};
  for (const float alpha : {1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::int64_t m : {1, 40}) {  // skinny, and packed
      std::vector<float> c(static_cast<std::size_t>(2 * m), 7.0f);
      Gemm gemm;
      gemm.m = m;
      gemm.n = gemm.ldb = gemm.ldc = 2;
      gemm.output = gemm.bias_type = DataType::kFloat;
      gemm.bias = bias;
      gemm.alpha = &alpha;
      gemm.c = c.data();
      EXPECT(Multiply(subject, gemm, {}).ok(), "%s", subject.name);
      for (std::size_t i = 0; i < c.size(); ++i) {
        EXPECT(c[i] == bias[i % 2], "%s: alpha = %g gives %g", subject.name, alpha,
               c[i]);
      }
    }
  }
}

void TestEveryActivation(const Subject& subject) {
  // Every finite FP16 value through each activation, 64 to a row.
  std::vector<std::uint16_t> x;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) < 0x7c00) x.push_back(static_cast<std::uint16_t>(bits));
  }
  const std::uint16_t one = FloatToHalf(1.0f);
  std::vector<float> y(x.size());
  for (Activation activation : kActivations) {
    Gemm gemm;
    gemm.m = static_cast<std::int64_t>(x.size());
    gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = 1;
    gemm.a = x.data();
    gemm.b = &one;
    gemm.c = y.data();
    gemm.output = DataType::kFloat;
    gemm.activation = activation;
    EXPECT(Multiply(subject, gemm, {}).ok(), "%s", subject.name);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double argument = HalfToFloat(x[i]);
      const double expected = Activate(activation, argument);
      // Below 2^-126 FP32 has no full precision, and e^-z is 0 beyond z = 87.
      const double tolerance =
          ActivationError(activation, argument) * std::abs(expected) + 0x1p-110;
      EXPECT(std::abs(y[i] - expected) <= tolerance,
             "%s activation %d of %g: %g, not %g", subject.name,
             static_cast<int>(activation), argument, y[i], expected);
    }
  }
}

void TestDeterminism(const Subject& subject) {
  const int layouts = subject.is_emulated ? 1 : 4;
  const std::vector<int> counts =
      subject.is_emulated ? std::vector{1, 7} : std::vector{1, 2, 3, 7, 1};
  // Enough work for several threads each: 3 columns take the skinny path.
  for (auto [m, n] : {std::pair{2000L, 3L}, {500L, 40L}, {500L, 70L}}) {
    for (int bits = 0; bits < 2 * layouts; ++bits) {
      std::mt19937 random(3);
      Case one(m, n, 1100, random);
      const bool is_gradient = bits & 1;
      one.gemm.transpose_a = bits & 2;
      one.gemm.transpose_b = bits & 4;
      if (!is_gradient) one.gemm.output = DataType::kFloat;
      one.Allocate();
      if (is_gradient) one.AddUpstream(DataType::kHalf);
      std::vector<unsigned char> first;
      std::vector<float> first_sums;
      for (int threads : counts) {
        one.ClearResult();
        const Parallel parallel = {threads, &threads, RunOnThreads};
        EXPECT(Multiply(subject, one.gemm, parallel).ok(), "%s", subject.name);
        if (first.empty()) first = one.result(), first_sums = one.sums();
        EXPECT(first == one.result() && first_sums == one.sums(),
               "%s n=%ld: other bits with %d threads", subject.name, n, threads);
      }
    }
  }
}

void TestGeluGradient(const Subject& subject) {
  std::mt19937 random(8);
  // Rows of one sum and of several, skinny and not; columns of less than a vector.
  for (const std::int64_t m : {1, 7, 64, 65, 300}) {
    for (const std::int64_t n : {1, 19, 70}) {
      for (int bits = 0; bits < 8; ++bits) {
        Case one(m, n, random() % 90, random);
        one.gemm.transpose_a = bits & 1;
        one.gemm.transpose_b = bits & 2;
        one.gemm.input = one.gemm.output = kInputs[random() % 3];
        one.gemm.rounds_b = random() % 3 == 0;
        one.gemm.batch = m < 100 && bits & 4 ? 3 : 1;
        const float alpha = 0.25f;
        one.gemm.alpha = random() % 2 ? &alpha : nullptr;
        one.Allocate();
        if (random() % 2) one.AddBias(random() % 2 ? one.gemm.input : DataType::kFloat);
        one.AddUpstream(random() % 2 ? one.gemm.input : DataType::kFloat);
        one.Check(subject, 1);
      }
    }
  }
  // One row has an inf, whose tile has blocks of rows before and after it.
  Case with_inf(700, 20, 33, random);
  with_inf.Allocate();
  with_inf.SetA(345, 7, std::numeric_limits<float>::infinity());
  with_inf.AddUpstream(DataType::kFloat);
  EXPECT(Multiply(subject, with_inf.gemm, {}).ok(), "%s", subject.name);
  for (const std::int64_t i : {0, 344, 346, 699}) with_inf.CheckRow(subject, i);
  EXPECT(!std::isfinite(with_inf.sums()[0]), "%s: the inf is lost", subject.name);
}

// The slope at every finite FP16 number.
void TestGeluSlope(const Subject& subject) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) < 0x7c00) x.push_back(HalfToFloat(static_cast<std::uint16_t>(bits)));
  }
  const std::vector<float> ones(x.size(), 1.0f);
  std::vector<float> y(x.size());
  float sum = 0;
  Gemm gemm;
  gemm.m = static_cast<std::int64_t>(x.size());
  gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = 1;
  gemm.input = gemm.output = gemm.upstream_type = DataType::kFloat;
  gemm.activation = Activation::kGelu;
  gemm.a = x.data();
  gemm.b = gemm.upstream = ones.data();
  gemm.c = y.data();
  gemm.column_sums = &sum;
  EXPECT(Multiply(subject, gemm, {}).ok(), "%s", subject.name);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = GeluSlope(x[i]);
    EXPECT(std::abs(y[i] - expected) <= 0x1p-20, "%s: the slope at %g is %g, not %g",
           subject.name, x[i], y[i], expected);
  }
}

void TestConcurrentCalls(const Subject& subject) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([subject, caller] {
      std::mt19937 random(caller);
      for (int repeat = 0; repeat < 3; ++repeat) {
        Case one(33 + caller, 65, 130, random);
        one.Allocate();
        one.Check(subject, 2);
      }
    });
  }
  for (auto& caller : callers) caller.join();
}

// Two rows of A, 2^31 + 8 elements apart: an offset in 32 bits would miss the second.
void TestFarRows(const Subject& subject) {
  const std::int64_t distance = (std::int64_t{1} << 31) + 8;
  const std::size_t bytes = (distance + 1) * sizeof(std::uint16_t);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT(memory != MAP_FAILED, "no %zu bytes of address space", bytes);
  if (memory == MAP_FAILED) return;
  auto* a = static_cast<std::uint16_t*>(memory);
  a[0] = FloatToHalf(2.0f);
  a[distance] = FloatToHalf(3.0f);
  const std::uint16_t b = FloatToHalf(5.0f);
  float c[2] = {};
  Gemm gemm;
  gemm.m = 2;
  gemm.n = gemm.k = gemm.ldb = gemm.ldc = 1;
  gemm.lda = distance;
  gemm.a = a;
  gemm.b = &b;
  gemm.c = c;
  gemm.output = DataType::kFloat;
  EXPECT(Multiply(subject, gemm, {}).ok(), "%s", subject.name);
  EXPECT(c[0] == 10 && c[1] == 15, "%s: %g, %g", subject.name, c[0], c[1]);
  munmap(memory, bytes);
}

void TestRefusals() {
  std::uint16_t numbers[4] = {};
  Gemm good;
  good.m = good.n = good.k = good.lda = good.ldb = good.ldc = 2;
  good.a = good.b = good.c = numbers;
  EXPECT(Validate(good).ok(), "%s", Validate(good).message);
  const auto refused = [&](auto change) {
    Gemm bad = good;
    change(bad);
    EXPECT(GemmCpu(bad).code == StatusCode::kInvalidArgument, "not refused");
  };
  refused([](Gemm& g) { g.m = -1; });
  refused([](Gemm& g) { g.lda = 1; });
  refused([](Gemm& g) { g.ldb = 1; });
  refused([](Gemm& g) { g.ldc = 1; });
  refused([](Gemm& g) { g.a = nullptr; });
  refused([](Gemm& g) { g.c = nullptr; });
  refused([](Gemm& g) { g.input = DataType::kFloat; });
  refused([](Gemm& g) { g.output = DataType::kBfloat16; });
  refused([](Gemm& g) {
    g.bias = g.b;
    g.bias_type = DataType::kBfloat16;
  });
  refused([](Gemm& g) { g.stride_a = -1; });
  float sums[2] = {};
  const auto as_gradient = [&](Gemm& g) {
    g.activation = Activation::kGelu;
    g.upstream = numbers;
    g.column_sums = sums;
  };
  Gemm gradient = good;
  as_gradient(gradient);
  EXPECT(Validate(gradient).ok(), "%s", Validate(gradient).message);
  const auto gradient_refused = [&](auto change) {
    refused([&](Gemm& g) { as_gradient(g), change(g); });
  };
  gradient_refused([](Gemm& g) { g.activation = Activation::kTanh; });
  gradient_refused([](Gemm& g) { g.column_sums = nullptr; });
  gradient_refused([](Gemm& g) { g.output = DataType::kFloat; });
  gradient_refused([](Gemm& g) { g.upstream_type = DataType::kBfloat16; });
  refused([](Gemm& g) { g.m = g.lda = std::int64_t{1} << 61; });
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestConversions();
  TestRefusals();
  TestModel(Isa::kAvx512Bf16, DataType::kBfloat16, kBfloat16Gemm<DotModel>);
  TestModel(Isa::kAmxBf16, DataType::kBfloat16, kBfloat16Gemm<AmxModel>);
  TestModel(Isa::kAmxBf16, DataType::kHalf, kHalfGemm<AmxBf16Model>);
  TestModel(Isa::kAmxFp16, DataType::kHalf, kHalfGemm<AmxModel>);
  TestDispatch();
  for (const Subject& subject : Subjects()) {
    TestSizes(subject);
    TestBlocks(subject);
    TestOptions(subject);
    TestSpecialValues(subject);
    TestInfAmongNumbers(subject);
    TestSubnormalBfloat16(subject);
    TestEmptySum(subject);
    TestEveryActivation(subject);
    TestGeluGradient(subject);
    TestGeluSlope(subject);
    TestDeterminism(subject);
    TestConcurrentCalls(subject);
    TestFarRows(subject);
    std::printf("%s: %d failures so far\n", subject.name, failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
