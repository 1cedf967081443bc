// update_cpu.h against the formulas in single operations, for every instruction set of
// this machine.

#include "keras_mp/update_cpu.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cpu_fixture.h"

namespace keras_mp {
namespace {

constexpr DataType kAllTypes[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat};
constexpr UpdateRule kRules[] = {UpdateRule::kSgd, UpdateRule::kMomentum,
                                 UpdateRule::kNesterov, UpdateRule::kAdam};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint16_t kGuard = 12345;

// An array whose end is watched. An empty one has no address.
template <class Number>
struct Array {
  explicit Array(std::int64_t size) : size(size), numbers(size) {
    numbers.push_back(kGuard);
  }
  Number* data() { return size == 0 ? nullptr : numbers.data(); }
  bool is_whole() const { return numbers.back() == kGuard; }

  std::int64_t size;
  std::vector<Number> numbers;
};

// The arrays of one variable, with random numbers.
struct Variable {
  Variable(std::int64_t size, DataType gradient_type, bool has_weight, DataType type,
           float gradient_size, std::mt19937& random)
      : gradient_type(gradient_type),
        has_weight(has_weight),
        type(type),
        gradient(size),
        halves(size),
        master(size),
        m(size),
        v(size),
        weight(size),
        uniforms(size) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    for (std::int64_t i = 0; i < size; ++i) {
      gradient.numbers[i] = gradient_size * normal(random);
      if (gradient_type != DataType::kFloat) {
        halves.numbers[i] = To16(gradient_type, gradient.numbers[i]);
        gradient.numbers[i] = From16(gradient_type, halves.numbers[i]);
      }
      master.numbers[i] = normal(random);
      m.numbers[i] = normal(random);
      v.numbers[i] = uniform(random);
      // Every third weight was written by someone else.
      const float written = i % 3 == 0 ? normal(random) : master.numbers[i];
      weight.numbers[i] = To16(type, written);
      uniforms.numbers[i] = uniform(random);
    }
  }

  std::int64_t size() const { return master.size; }

  Gradient AsGradient() {
    Gradient result;
    result.size = size();
    result.type = gradient_type;
    result.values = gradient_type == DataType::kFloat
                        ? static_cast<const void*>(gradient.data())
                        : halves.data();
    return result;
  }

  MasterPair AsPair() {
    MasterPair pair;
    pair.size = size();
    pair.master = master.data();
    pair.type = type;
    pair.weight = has_weight ? weight.data() : nullptr;
    return pair;
  }

  bool is_whole() const {
    return gradient.is_whole() && halves.is_whole() && master.is_whole() &&
           m.is_whole() && v.is_whole() && weight.is_whole();
  }

  DataType gradient_type;
  bool has_weight;
  DataType type;
  Array<float> gradient;
  Array<std::uint16_t> halves;
  Array<float> master, m, v;
  Array<std::uint16_t> weight;
  Array<float> uniforms;
};

using Variables = std::vector<Variable>;

// The formulas, one number and one operation at a time.

float Limited(float x, float limit) { return std::fmin(std::fmax(x, -limit), limit); }

float Largest(DataType type) { return type == DataType::kHalf ? 65504.0f : 0x1.fep127f; }

float Spacing(DataType type, float x) {
  const int exponent = x == 0 ? -200 : std::ilogb(x);
  return type == DataType::kHalf ? std::ldexp(1.0f, std::max(exponent, -14) - 10)
                                 : std::ldexp(1.0f, std::max(exponent, -119) - 7);
}

std::uint16_t Cast(DataType type, float master, const float* uniform) {
  const float x = Limited(master, Largest(type));
  if (uniform == nullptr) return To16(type, x);
  const float spacing = Spacing(type, x);
  const float steps = x / spacing;
  const float down = std::floor(steps);
  return To16(type, (down + (*uniform < steps - down ? 1.0f : 0.0f)) * spacing);
}

bool IsARounding(DataType type, std::uint16_t weight, float master, Rounding rounding) {
  if (rounding == Rounding::kNearest) return weight == Cast(type, master, nullptr);
  const float never = 1, always = -1;
  return From16(type, weight) == From16(type, Cast(type, master, &never)) ||
         From16(type, weight) == From16(type, Cast(type, master, &always));
}

float Followed(DataType type, std::uint16_t weight, float master, Rounding rounding) {
  return IsARounding(type, weight, master, rounding) ? master : From16(type, weight);
}

void Step(const UpdateNumbers& u, bool decays, float gradient, float& w, float& m,
          float& v) {
  // `volatile` keeps the compiler from contracting.
  volatile float g = gradient / u.scale;
  if (u.clip_value != 0) g = Limited(g, u.clip_value);
  g = g * u.clip_factor;
  volatile float part;
  if (decays) {
    part = w * u.weight_decay;
    part = part * u.rate;
    w = w - part;
  }
  volatile float step = g * u.rate;
  switch (u.rule) {
    case UpdateRule::kSgd:
      w = w - step;
      return;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      part = m * u.momentum;
      m = part - step;
      if (u.rule == UpdateRule::kMomentum) {
        w = w + m;
      } else {
        part = m * u.momentum;
        part = part - step;
        w = w + part;
      }
      return;
    case UpdateRule::kAdam:
      part = g - m;
      part = part * u.one_minus_beta_1;
      m = m + part;
      part = g * g;
      part = part - v;
      part = part * u.one_minus_beta_2;
      v = v + part;
      part = m * u.alpha;
      volatile float below = std::sqrt(v) + u.epsilon;
      part = part / below;
      w = w - part;
      return;
  }
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Lists of variables of every kind.

constexpr std::int64_t kSizes[] = {0,  1,  3,   7,    15,   16,   17,  31,
                                   64, 65, 217, 1023, 1024, 1025, 3000};

Variables MakeVariables(std::int64_t count, float gradient_size, std::mt19937& random) {
  Variables variables;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t size = kSizes[random() % std::size(kSizes)];
    variables.emplace_back(size, kAllTypes[random() % 3], random() % 2 == 0,
                           kTypes[random() % 2], gradient_size, random);
  }
  return variables;
}

UpdateNumbers MakeNumbers(UpdateRule rule, bool has_options) {
  UpdateNumbers numbers;
  numbers.rule = rule;
  numbers.scale = has_options ? 100 : 1024;
  numbers.rate = 0.1f;
  numbers.momentum = 0.9f;
  numbers.alpha = 0.03f;
  numbers.one_minus_beta_1 = 0.1f;
  numbers.one_minus_beta_2 = 0.001f;
  numbers.epsilon = 1e-7f;
  if (has_options) {
    numbers.clip_value = 0.5f;
    numbers.clip_factor = 0.7f;
    numbers.weight_decay = 0.01f;
  }
  return numbers;
}

void CheckUpdate(Isa isa, const UpdateNumbers& numbers, Rounding rounding,
                 std::int64_t count, int threads, std::mt19937& random) {
  auto variables = MakeVariables(count, 1000, random);
  const auto before = variables;
  std::vector<Parameter> parameters;
  for (std::int64_t i = 0; i < count; ++i) {
    Variable& variable = variables[i];
    Parameter parameter;
    parameter.gradient = variable.AsGradient();
    parameter.slots[0] = variable.m.data();
    parameter.slots[1] = variable.v.data();
    parameter.decays = numbers.weight_decay != 0 && i % 2 == 0;
    parameter.pair = variable.AsPair();
    if (rounding == Rounding::kStochastic) parameter.uniforms = variable.uniforms.data();
    parameters.push_back(parameter);
  }
  Update update;
  update.count = count;
  update.parameters = parameters.data();
  update.numbers = numbers;
  update.rounding = rounding;
  const Status status = UpdateCpu(update, {threads, &threads, RunOnThreads}, isa);
  EXPECT(status.ok(), "%s", status.message);

  for (std::int64_t k = 0; k < count; ++k) {
    const Variable& after = variables[k];
    EXPECT(after.is_whole(), "wrote behind variable %ld", k);
    Variable expected = before[k];
    for (std::int64_t i = 0; i < after.size(); ++i) {
      float& w = expected.master.numbers[i];
      std::uint16_t& weight = expected.weight.numbers[i];
      if (after.has_weight) w = Followed(after.type, weight, w, rounding);
      Step(numbers, parameters[k].decays, expected.gradient.numbers[i], w,
           expected.m.numbers[i], expected.v.numbers[i]);
      const float* uniform = rounding == Rounding::kStochastic
                                 ? &expected.uniforms.numbers[i]
                                 : nullptr;
      if (after.has_weight) weight = Cast(after.type, w, uniform);
      EXPECT(SameBits(after.master.numbers[i], w), "%s rule %d: w %.9g, expected %.9g",
             Name(isa), static_cast<int>(numbers.rule), after.master.numbers[i], w);
      EXPECT(SameBits(after.m.numbers[i], expected.m.numbers[i]), "%s rule %d: m",
             Name(isa), static_cast<int>(numbers.rule));
      EXPECT(SameBits(after.v.numbers[i], expected.v.numbers[i]), "%s rule %d: v",
             Name(isa), static_cast<int>(numbers.rule));
      EXPECT(after.weight.numbers[i] == weight, "%s: weight %04x, expected %04x",
             Name(isa), after.weight.numbers[i], weight);
    }
  }
}

void TestUpdate(Isa isa) {
  std::mt19937 random(1);
  for (UpdateRule rule : kRules) {
    for (bool has_options : {false, true}) {
      for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        for (std::int64_t count : {0, 1, 5, 40}) {
          CheckUpdate(isa, MakeNumbers(rule, has_options), rounding, count,
                      1 + random() % 3, random);
        }
      }
    }
  }
}

GradientCheck MakeCheck(std::vector<Gradient>& gradients, Variables& variables,
                        float scale, bool* overflows, double* squares) {
  for (Variable& variable : variables) gradients.push_back(variable.AsGradient());
  GradientCheck check;
  check.count = static_cast<std::int64_t>(gradients.size());
  check.gradients = gradients.data();
  check.scale = scale;
  check.overflows = overflows;
  check.squares = squares;
  return check;
}

void CheckOverflows(Isa isa, std::int64_t count, int threads, std::mt19937& random) {
  const float kBad[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()};
  auto variables = MakeVariables(count, 1, random);
  std::vector<char> is_bad(count, false);
  for (std::int64_t k = 0; k < count; ++k) {
    Variable& variable = variables[k];
    is_bad[k] = variable.size() > 0 && random() % 2 == 0;
    if (!is_bad[k]) continue;
    const std::int64_t i = random() % variable.size();
    variable.gradient.numbers[i] = kBad[random() % 3];
    if (variable.gradient_type != DataType::kFloat) {
      const float bad = variable.gradient.numbers[i];
      variable.halves.numbers[i] = To16(variable.gradient_type, bad);
    }
  }
  const Variables before = variables;
  const float scale = random() % 2 ? 8 : 100;
  std::vector<Gradient> gradients;
  const auto overflows = std::make_unique<bool[]>(count + 1);
  overflows[count] = true;
  const Parallel parallel = {threads, &threads, RunOnThreads};
  const auto check = MakeCheck(gradients, variables, scale, overflows.get(), nullptr);
  Status status = CheckGradientsCpu(check, parallel, isa);
  EXPECT(status.ok(), "%s", status.message);
  for (std::int64_t k = 0; k < count; ++k) {
    EXPECT(overflows[k] == (is_bad[k] != 0), "%s: gradient %ld of %ld", Name(isa), k,
           count);
  }

  // The masters are as good as any array to un-scale into; FP32 gradients stay in place.
  std::vector<float*> to;
  for (Variable& variable : variables) {
    const bool in_place = variable.gradient_type == DataType::kFloat;
    to.push_back(in_place ? variable.gradient.data() : variable.master.data());
  }
  std::fill_n(overflows.get(), count, false);
  status = UnscaleGradientsCpu(check, to.data(), parallel, isa);
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(overflows[count], "wrote behind the flags");
  for (std::int64_t k = 0; k < count; ++k) {
    EXPECT(variables[k].is_whole(), "wrote behind variable %ld", k);
    EXPECT(overflows[k] == (is_bad[k] != 0), "%s: gradient %ld of %ld", Name(isa), k,
           count);
    for (std::int64_t i = 0; i < variables[k].size(); ++i) {
      const float expected = before[k].gradient.numbers[i] / scale;
      EXPECT(SameBits(to[k][i], expected) || std::isnan(expected),
             "%s: %.9g, expected %.9g", Name(isa), to[k][i], expected);
    }
  }
}

void TestOverflows(Isa isa) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 50; ++trial) {
    CheckOverflows(isa, random() % 20, 1 + random() % 3, random);
  }
}

// 1e38 is finite, 1e38 / 2^-14 is not.
void TestDivisionMayOverflow(Isa isa) {
  const float number = 1e38f;
  Gradient gradient;
  gradient.size = 1;
  gradient.values = &number;
  for (float scale : {0x1p-14f, 1.0f}) {
    bool overflow = false;
    GradientCheck check;
    check.count = 1;
    check.gradients = &gradient;
    check.scale = scale;
    check.overflows = &overflow;
    CheckGradientsCpu(check, {}, isa);
    EXPECT(overflow == (scale < 1), "%s: scale %g", Name(isa), scale);
  }
}

void TestSquares(Isa isa) {
  std::mt19937 random(3);
  auto variables = MakeVariables(40, 1, random);
  variables.emplace_back(1 << 20, DataType::kFloat, false, DataType::kHalf, 1, random);
  double expected = 0, once = 0, on_threads = 0;
  for (const Variable& variable : variables) {
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      const double g = variable.gradient.numbers[i] / 8;
      expected += g * g;
    }
  }
  int threads = 3;
  std::vector<Gradient> gradients, again;
  const auto overflows = std::make_unique<bool[]>(variables.size());
  CheckGradientsCpu(MakeCheck(gradients, variables, 8, overflows.get(), &once), {}, isa);
  CheckGradientsCpu(MakeCheck(again, variables, 8, overflows.get(), &on_threads),
                    {threads, &threads, RunOnThreads}, isa);
  EXPECT(std::abs(once - expected) <= 0x1p-14 * expected, "%s: %.12g, expected %.12g",
         Name(isa), once, expected);
  EXPECT(once == on_threads, "%s: threads change the sum", Name(isa));
}

// The two ops around someone else's optimizer do as the update does.
void TestFollowAndCast(Isa isa) {
  std::mt19937 random(4);
  for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    auto variables = MakeVariables(40, 1, random);
    for (Variable& variable : variables) variable.has_weight = true;
    const Variables before = variables;
    std::vector<MasterPair> pairs;
    std::vector<const float*> uniforms;
    for (Variable& variable : variables) {
      pairs.push_back(variable.AsPair());
      uniforms.push_back(variable.uniforms.data());
    }
    int threads = 2;
    const Parallel parallel = {threads, &threads, RunOnThreads};
    const auto count = static_cast<std::int64_t>(pairs.size());
    FollowWeightsCpu(pairs.data(), count, rounding, parallel, isa);
    const Variables between = variables;
    CastMastersCpu(pairs.data(), count,
                   rounding == Rounding::kStochastic ? uniforms.data() : nullptr,
                   parallel, isa);
    for (std::size_t k = 0; k < variables.size(); ++k) {
      const DataType type = variables[k].type;
      EXPECT(variables[k].is_whole(), "wrote behind variable %zu", k);
      for (std::int64_t i = 0; i < variables[k].size(); ++i) {
        const float master = between[k].master.numbers[i];
        EXPECT(master == Followed(type, before[k].weight.numbers[i],
                                  before[k].master.numbers[i], rounding),
               "%s follows to %.9g", Name(isa), master);
        const float* uniform = rounding == Rounding::kStochastic
                                   ? &before[k].uniforms.numbers[i]
                                   : nullptr;
        EXPECT(variables[k].weight.numbers[i] == Cast(type, master, uniform),
               "%s casts %.9g", Name(isa), master);
      }
    }
  }
}

struct CastCase {
  DataType type;
  float master;
  float uniform;  // below 0: to nearest
  float expected;
};

constexpr CastCase kCasts[] = {
    {DataType::kHalf, 1e6f, -1, 65504},         // saturates
    {DataType::kHalf, -kInf, -1, -65504},       //
    {DataType::kHalf, 65520, 0, 65504},         // no neighbour above
    {DataType::kHalf, 1 + 0x1p-11f, -1, 1},     // to even
    {DataType::kHalf, 1 + 0x1p-12f, 0.2f, 1 + 0x1p-10f},  // a quarter of the way
    {DataType::kHalf, 1 + 0x1p-12f, 0.3f, 1},
    {DataType::kHalf, -1 - 0x1p-12f, 0.8f, -1 - 0x1p-10f},  // down is away from 0
    {DataType::kHalf, -1 - 0x1p-12f, 0.7f, -1},
    {DataType::kHalf, 0x1p-26f, 0.2f, 0x1p-24f},  // below the smallest
    {DataType::kHalf, 0x1p-26f, 0.3f, 0},
    {DataType::kHalf, 0, 0, 0},
    {DataType::kBfloat16, 1 + 0x1p-9f, 0.2f, 1 + 0x1p-7f},
    {DataType::kBfloat16, 0x1.ffp127f, -1, 0x1.fep127f},
};

void TestCastByHand(Isa isa) {
  for (const CastCase& one : kCasts) {
    float master = one.master;
    std::uint16_t weight = 0;
    MasterPair pair;
    pair.size = 1;
    pair.master = &master;
    pair.type = one.type;
    pair.weight = &weight;
    const float* uniforms = &one.uniform;
    CastMastersCpu(&pair, 1, one.uniform < 0 ? nullptr : &uniforms, {}, isa);
    EXPECT(From16(one.type, weight) == one.expected, "%s: %.9g with %g: %.9g", Name(isa),
           one.master, one.uniform, From16(one.type, weight));
  }
}

void TestErrors() {
  Update update;
  update.count = -1;
  EXPECT(UpdateCpu(update).code == StatusCode::kInvalidArgument, "negative count");
  EXPECT(FollowWeightsCpu(nullptr, -1, Rounding::kNearest).code ==
             StatusCode::kInvalidArgument,
         "negative count");
}

// Random lists: what the sanitizers are to see.
void TestManyLists(Isa isa, int trials) {
  std::mt19937 random(5);
  for (int trial = 0; trial < trials; ++trial) {
    const auto rounding = random() % 2 ? Rounding::kNearest : Rounding::kStochastic;
    CheckUpdate(isa, MakeNumbers(kRules[random() % 4], random() % 2), rounding,
                random() % 6, 1 + random() % 3, random);
    CheckOverflows(isa, random() % 6, 1 + random() % 3, random);
  }
}

}  // namespace
}  // namespace keras_mp

// With a number: so many random lists, for the fastest instruction set.
int main(int argc, char** argv) {
  using namespace keras_mp;
  if (argc > 1) {
    TestManyLists(BestIsa(), std::atoi(argv[1]));
    return Report();
  }
  TestErrors();
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    TestUpdate(isa);
    TestOverflows(isa);
    TestDivisionMayOverflow(isa);
    TestSquares(isa);
    TestFollowAndCast(isa);
    TestCastByHand(isa);
    TestManyLists(isa, 100);
  }
  return Report();
}
