// Tests logit_statistics_cpu.h against double precision, on every instruction set of this
// machine.

#include "keras_mp/logit_statistics_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"

namespace keras_mp {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;

struct Options {
  DataType type = DataType::kHalf;
  bool transpose = false, has_bias = true, has_targets = false, has_float_kernel = false;
  float soft_cap = 0;
};

// A problem, its results with a guard after each, and what they are in double precision.
struct Case {
  static constexpr float kGuard = -12345;
  static constexpr std::uint16_t kGuard16 = 0xa5a5;

  std::int64_t rows, size, words;
  Options options;
  std::vector<std::uint16_t> inputs, kernel, grad_inputs, grad_kernel;
  std::vector<float> float_inputs, float_kernel, bias, targets, upstream[3];
  std::vector<std::int32_t> labels, argmax;
  std::vector<float> logsumexp, target, total;
  std::vector<float> grad_float_inputs, grad_float_kernel, grad_bias;

  Case(std::int64_t rows, std::int64_t size, std::int64_t words, const Options& options,
       std::mt19937& random)
      : rows(rows), size(size), words(words), options(options) {
    Draw(rows * size, random, &inputs, &float_inputs);
    Draw(size * words, random, &kernel, &float_kernel);
    bias = Floats(words, 0, 1, random);
    targets = Floats(rows * words, 0.5, 0.25, random);
    for (auto& of_rows : upstream) of_rows = Floats(rows, 0, 1, random);
    for (std::int64_t r = 0; r < rows; ++r) {
      labels.push_back(static_cast<std::int32_t>(random() % words));
    }
    Clear();
  }

  // Numbers of the type, in 16 bits where it has those, and in FP32.
  void Draw(std::int64_t count, std::mt19937& random, std::vector<std::uint16_t>* halves,
            std::vector<float>* floats) const {
    if (options.type == DataType::kFloat) {
      *floats = Floats(count, 0, 1, random);
      return;
    }
    *halves = Numbers(options.type, count, 0, 1, random);
    for (std::uint16_t x : *halves) floats->push_back(From16(options.type, x));
  }

  void Clear() {
    logsumexp.assign(rows + 1, kGuard);
    target = total = logsumexp;
    argmax.assign(rows + 1, -7);
    grad_inputs.assign(rows * size + 1, kGuard16);
    grad_kernel.assign(size * words + 1, kGuard16);
    grad_float_inputs.assign(rows * size + 1, kGuard);
    grad_float_kernel.assign(size * words + 1, kGuard);
    grad_bias.assign(words + 1, kGuard);
  }

  LinearLogits Problem() const {
    LinearLogits l;
    l.rows = rows;
    l.size = size;
    l.words = words;
    l.type = l.kernel_type = options.type;
    l.transpose = options.transpose;
    l.soft_cap = options.soft_cap;
    l.inputs = inputs.data();
    l.kernel = kernel.data();
    if (HasFloatInputs()) l.inputs = float_inputs.data();
    if (HasFloatKernel()) {
      l.kernel_type = DataType::kFloat;
      l.kernel = float_kernel.data();
    }
    if (options.has_bias) l.bias = bias.data();
    options.has_targets ? void(l.targets = targets.data()) : void(l.labels = labels.data());
    return l;
  }

  void Run(Isa isa, int threads) {
    const Parallel parallel = {threads, &threads, RunOnThreads};
    const Status forward = LogitStatisticsCpu(
        Problem(), {logsumexp.data(), target.data(), total.data(), argmax.data()},
        parallel, isa);
    EXPECT(forward.ok(), "%s", forward.message);
    LogitStatisticsGradient g;
    g.logsumexp = logsumexp.data();
    g.grad_logsumexp = upstream[0].data();
    g.grad_target = upstream[1].data();
    g.grad_total = upstream[2].data();
    g.grad_inputs = grad_inputs.data();
    g.grad_kernel = grad_kernel.data();
    if (HasFloatInputs()) g.grad_inputs = grad_float_inputs.data();
    if (HasFloatKernel()) g.grad_kernel = grad_float_kernel.data();
    if (options.has_bias) g.grad_bias = grad_bias.data();
    const Status backward = LogitStatisticsGradientCpu(Problem(), g, parallel, isa);
    EXPECT(backward.ok(), "%s", backward.message);
  }

  double Input(std::int64_t r, std::int64_t h) const {
    return float_inputs[r * size + h];
  }
  std::int64_t KernelIndex(std::int64_t h, std::int64_t v) const {
    return options.transpose ? v * size + h : h * words + v;
  }
  bool HasFloatInputs() const { return options.type == DataType::kFloat; }
  bool HasFloatKernel() const { return options.has_float_kernel || HasFloatInputs(); }
  double GradInput(std::int64_t i) const {
    return HasFloatInputs() ? grad_float_inputs[i] : From16(options.type, grad_inputs[i]);
  }
  double GradKernel(std::int64_t i) const {
    return HasFloatKernel() ? grad_float_kernel[i] : From16(options.type, grad_kernel[i]);
  }
  double Kernel(std::int64_t h, std::int64_t v) const {
    return float_kernel[KernelIndex(h, v)];
  }
  double TargetOf(std::int64_t r, std::int64_t v) const {
    return options.has_targets ? targets[r * words + v] : labels[r] == v;
  }
};

// Bounds: how far the results may err, as in logit_statistics.h.
void Compare(const Case& c, const char* name) {
  const DataType type = c.options.type;
  // Of the slopes.
  const double unit = type == DataType::kHalf       ? 0x1p-11
                      : type == DataType::kBfloat16 ? 0x1p-8
                                                    : 0;
  const double lost = type == DataType::kHalf ? 0x1p-38 : 0;
  const double cap = c.options.soft_cap;
  std::vector<double> slopes(c.rows * c.words), errors(c.rows * c.words);
  double largest_upstream = 0;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double all = 0;
    for (const auto& of_rows : c.upstream) all += std::abs(of_rows[r]);
    largest_upstream = std::max(largest_upstream, all);
  }
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> z(c.words);
    double error = 0, sizes = 0;
    for (std::int64_t v = 0; v < c.words; ++v) {
      double sum = c.options.has_bias ? c.bias[v] : 0, of_terms = std::abs(sum);
      for (std::int64_t h = 0; h < c.size; ++h) {
        const double term = c.Input(r, h) * c.Kernel(h, v);
        sum += term;
        of_terms += std::abs(term);
      }
      error = std::max(error, (std::max<std::int64_t>(c.size, 8) + 3) * kUnit * of_terms);
      z[v] = cap == 0 ? sum : cap * std::tanh(sum / cap);
    }
    if (cap != 0) error += 16 * kUnit * cap;
    const double largest = *std::max_element(z.begin(), z.end());
    double exponentials = 0, target = 0, total = 0, of_target = 0;
    for (std::int64_t v = 0; v < c.words; ++v) {
      exponentials += std::exp(z[v] - largest);
      target += c.TargetOf(r, v) * z[v];
      of_target += std::abs(c.TargetOf(r, v)) * (std::abs(z[v]) + 1);
      total += z[v];
      sizes += std::abs(z[v]);
    }
    const double log_sum = largest + std::log(exponentials);
    const double sums = (c.words + 16) * kUnit;
    const double of_log_sum = error + sums + 0x1p-20 + 4 * kUnit * std::abs(log_sum);
    const double of_targets = c.options.has_targets ? c.words : 1;
    EXPECT(std::abs(c.logsumexp[r] - log_sum) <= of_log_sum, "%s: %g for %g", name,
           c.logsumexp[r], log_sum);
    EXPECT(std::abs(c.target[r] - target) <= error * of_targets + sums * of_target,
           "%s: %g for %g", name, c.target[r], target);
    EXPECT(std::abs(c.total[r] - total) <= error * c.words + sums * sizes,
           "%s: %g for %g", name, c.total[r], total);
    EXPECT(z[c.argmax[r]] >= largest - 2 * error, "%s: word %d", name, c.argmax[r]);

    for (std::int64_t v = 0; v < c.words; ++v) {
      const double p = std::exp(z[v] - log_sum);
      const double bend = cap == 0 ? 1 : 1 - z[v] / cap * (z[v] / cap);
      const double of_p = c.upstream[0][r] * p;
      const double of_weight = c.upstream[1][r] * c.TargetOf(r, v);
      const double of_total = c.upstream[2][r];
      double& slope = slopes[r * c.words + v] = (of_p + of_weight + of_total) * bend;
      const double of_slope = std::abs(of_p) + std::abs(of_weight) + std::abs(of_total);
      double& bound = errors[r * c.words + v];
      bound = std::abs(of_p) * (2 * error + 2 * of_log_sum + 0x1p-19) +
              8 * kUnit * of_slope;
      if (cap != 0) bound += of_slope * (4 * error / cap + 0x1p-19);
      bound += unit * (std::abs(slope) + bound) + lost * largest_upstream;
    }
  }
  const auto check = [&](double found, double value, double bound, const char* what,
                         bool rounds) {
    bound += 0x1p-100;
    if (rounds) bound = Rounded(type, value, bound);
    EXPECT(std::abs(found - value) <= bound, "%s, %s: %g for %g", name, what, found, value);
  };
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t h = 0; h < c.size; ++h) {
      double value = 0, bound = 0;
      for (std::int64_t v = 0; v < c.words; ++v) {
        const double slope = slopes[r * c.words + v];
        value += slope * c.Kernel(h, v);
        bound += std::abs(c.Kernel(h, v)) *
                 (errors[r * c.words + v] + (c.words + 8) * kUnit * std::abs(slope));
      }
      check(c.GradInput(r * c.size + h), value, bound, "inputs", !c.HasFloatInputs());
    }
  }
  for (std::int64_t v = 0; v < c.words; ++v) {
    for (std::int64_t h = 0; h < c.size; ++h) {
      double value = 0, bound = 0;
      for (std::int64_t r = 0; r < c.rows; ++r) {
        const double slope = slopes[r * c.words + v];
        value += slope * c.Input(r, h);
        bound += std::abs(c.Input(r, h)) *
                 (errors[r * c.words + v] + (c.rows + 8) * kUnit * std::abs(slope));
      }
      check(c.GradKernel(c.KernelIndex(h, v)), value, bound, "kernel",
            !c.HasFloatKernel());
    }
    if (!c.options.has_bias) continue;
    double value = 0, bound = 0;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const double slope = slopes[r * c.words + v];
      value += slope;
      bound += errors[r * c.words + v] + c.rows * kUnit * std::abs(slope);
    }
    check(c.grad_bias[v], value, bound, "bias", false);
  }
  EXPECT(c.logsumexp.back() == Case::kGuard && c.target.back() == Case::kGuard &&
             c.total.back() == Case::kGuard && c.argmax.back() == -7 &&
             c.grad_inputs.back() == Case::kGuard16 &&
             c.grad_kernel.back() == Case::kGuard16 &&
             c.grad_float_inputs.back() == Case::kGuard &&
             c.grad_float_kernel.back() == Case::kGuard &&
             c.grad_bias.back() == Case::kGuard,
         "%s: written beyond the end", name);
}

void TestValues(Isa isa) {
  struct Sizes {
    std::int64_t rows, size, words;
  };
  // The last two have more than one block of words, with and without a rest.
  constexpr Sizes kSizes[] = {{1, 1, 1},   {1, 64, 989}, {17, 7, 111}, {70, 17, 33},
                              {3, 5, 16},  {65, 8, 256}, {4, 6, 8192}, {5, 3, 4099}};
  std::mt19937 random(1);
  int index = 0;
  for (const Sizes& sizes : kSizes) {
    for (DataType type : {DataType::kHalf, DataType::kBfloat16, DataType::kFloat}) {
      for (int bits = 0; bits < (type == DataType::kFloat ? 8 : 16); ++bits) {
        // All combinations for small problems, some for large ones.
        if (sizes.words > 1000 && (bits + index) % 5 != 0) continue;
        Options options;
        options.type = type;
        options.transpose = bits & 1;
        options.has_bias = bits & 2;
        options.has_targets = bits & 4;
        options.has_float_kernel = bits & 8;
        options.soft_cap = ++index % 3 == 0 ? 2.5f : 0;
        Case one(sizes.rows, sizes.size, sizes.words, options, random);
        one.Run(isa, 2);
        Compare(one, Name(isa));
      }
    }
  }
}

void TestThreadsDoNotChangeBits(Isa isa) {
  for (DataType type : {DataType::kHalf, DataType::kFloat}) {
    std::mt19937 random(5), again(5);
    Options options;
    options.type = type;
    Case one(300, 17, 5000, options, random), other(300, 17, 5000, options, again);
    one.Run(isa, 1);
    other.Run(isa, 3);
    EXPECT(one.logsumexp == other.logsumexp && one.grad_inputs == other.grad_inputs &&
               one.grad_float_inputs == other.grad_float_inputs &&
               one.grad_kernel == other.grad_kernel &&
               one.grad_float_kernel == other.grad_float_kernel &&
               one.grad_bias == other.grad_bias,
           "%s", Name(isa));
  }
}

// By hand: logits of 0 but for the bias.
void TestSpecialNumbers(Isa isa) {
  Options options;
  std::mt19937 random(2);
  const auto with_bias = [&](std::vector<float> bias, std::int32_t label) {
    Case one(1, 1, 3, options, random);
    one.inputs = {0};
    one.bias = std::move(bias);
    one.labels = {label};
    one.Run(isa, 1);
    return one;
  };
  const Case hidden = with_bias({-kInf, 0, 0}, 1);
  EXPECT(std::abs(hidden.logsumexp[0] - std::log(2.0)) < 1e-6, "%g", hidden.logsumexp[0]);
  EXPECT(hidden.target[0] == 0 && hidden.argmax[0] == 1, "%g", hidden.target[0]);
  const Case nothing = with_bias({-kInf, -kInf, -kInf}, 1);
  EXPECT(nothing.logsumexp[0] == -kInf && nothing.argmax[0] == 0, "%g",
         nothing.logsumexp[0]);
  for (float odd : {kInf, std::nanf("")}) {
    const Case one = with_bias({0, odd, 0}, 0);
    EXPECT(!std::isfinite(one.logsumexp[0]), "%g", one.logsumexp[0]);
    EXPECT(!std::isfinite(one.grad_bias[1]), "%g", one.grad_bias[1]);
  }
  for (std::int32_t no_word : {-1, 3, std::numeric_limits<std::int32_t>::max(),
                               std::numeric_limits<std::int32_t>::min()}) {
    EXPECT(with_bias({1, 1, 1}, no_word).target[0] == 0, "label %d", no_word);
  }
}

void TestBadArguments() {
  std::mt19937 random(3);
  Case one(2, 2, 2, {}, random);
  const auto refuses = [&](auto change) {
    LinearLogits l = one.Problem();
    change(&l);
    return LogitStatisticsCpu(l, {one.logsumexp.data(), one.target.data(),
                                  one.total.data(), one.argmax.data()})
               .code == StatusCode::kInvalidArgument;
  };
  EXPECT(refuses([](LinearLogits* l) { l->rows = -1; }), "rows");
  EXPECT(refuses([](LinearLogits* l) { l->type = DataType::kFloat; }), "type");
  EXPECT(refuses([](LinearLogits* l) { l->kernel_type = DataType::kBfloat16; }), "kernel");
  EXPECT(refuses([](LinearLogits* l) { l->soft_cap = std::nanf(""); }), "cap");
  EXPECT(refuses([](LinearLogits* l) { l->soft_cap = kInf; }), "cap");
  EXPECT(refuses([](LinearLogits* l) { l->labels = nullptr; }), "labels");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  for (Isa isa : SupportedIsas()) {
    TestValues(isa);
    TestThreadsDoNotChangeBits(isa);
    TestSpecialNumbers(isa);
  }
  TestBadArguments();
  return Report();
}
