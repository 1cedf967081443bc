// Tests of update.h against common/update_oracle.h. A `Device` computes; it has
//
//   Name()                             for messages
//   Allocator<Number>                  of memory that the device and the host can access
//   Check, Unscale, SyncMasters, Cast, Update
//                                      as in update_cpu.h, but synchronous

#ifndef KERAS_MP_TESTS_COMMON_UPDATE_SUITE_H_
#define KERAS_MP_TESTS_COMMON_UPDATE_SUITE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/status.h"
#include "keras_mp/update.h"
#include "common/update_oracle.h"

namespace keras_mp {

constexpr DataType kAllTypes[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Zeros, numbers that are subnormal in FP16 or FP32, and numbers around the largest
// finite ones.
constexpr float kSmall[] = {0.0f, -0.0f, 0x1p-149f, -1e-40f, 0x1p-126f, 3e-8f, -6e-5f};
constexpr float kLarge[] = {65504, -65519, 65520, 1e6f, -3e38f, kInf, -kInf, kNaN};
constexpr std::int64_t kSizes[] = {0,  1,   3,    7,    15,   16,  17, 31, 64,
                                   65, 217, 1023, 1024, 1025, 3000};

inline UpdateRule RuleAt(int number) { return static_cast<UpdateRule>(number); }

inline UpdateHyperparameters MakeHyperparameters(bool has_options) {
  UpdateHyperparameters result;
  result.scale = has_options ? 100 : 1024;
  result.learning_rate = 0.1f;
  result.momentum = 0.9f;
  result.alpha = 0.03f;
  result.beta_1 = 0.9f;
  result.one_minus_beta_1 = 0.1f;
  result.beta_2 = 0.999f;
  result.one_minus_beta_2 = 0.001f;
  result.epsilon = 1e-7f;
  result.m_factor = 0.7f;
  result.m_divisor = 0.6f;
  result.g_factor = 0.3f;
  result.g_divisor = 0.4f;
  result.v_divisor = 0.01f;
  if (has_options) {
    result.clip_value = 0.5f;
    result.clip_factor = 0.7f;
    result.weight_decay = 0.01f;
  }
  return result;
}

template <class Device>
class UpdateSuite {
 public:
  explicit UpdateSuite(Device device) : device_(device) {}

  void TestAll() {
    TestUpdate();
    TestLongArrays();
    TestSkippedStep();
    TestNonfinite();
    TestDivisionMayOverflow();
    TestSumOfSquares();
    TestSyncAndCast();
    TestCastByHand();
    TestErrors();
  }

  // Random lists of variables, for the sanitizers.
  void TestManyLists(int trials) {
    std::mt19937 random(5);
    for (int trial = 0; trial < trials; ++trial) {
      const auto rounding = random() % 2 ? Rounding::kNearest : Rounding::kStochastic;
      const UpdateRule rule = RuleAt(static_cast<int>(random() % kUpdateRules));
      CheckUpdate(rule, MakeHyperparameters(random() % 2), rounding,
                  MakeVariables(random() % 6, 1000, random));
      CheckNonfinite(random() % 6, random);
    }
  }

 private:
  // An array with a guard on both sides. An empty array is null.
  template <class Number>
  class Array {
   public:
    // It begins `skipped` elements after an address that is aligned for all vectors.
    explicit Array(std::int64_t size, std::size_t skipped = 0)
        : size_(size), first_(kAligned + skipped), numbers_(first_ + size + 1) {
      numbers_[first_ - 1] = numbers_.back() = Number{kGuard};
    }
    std::int64_t size() const { return size_; }
    Number* data() { return size_ == 0 ? nullptr : &numbers_[first_]; }
    Number& operator[](std::int64_t i) { return numbers_[first_ + i]; }
    const Number& operator[](std::int64_t i) const { return numbers_[first_ + i]; }
    bool is_whole() const {
      return numbers_[first_ - 1] == kGuard && numbers_.back() == kGuard;
    }

   private:
    static constexpr std::size_t kAligned = 16;
    static constexpr char kGuard = 77;

    std::int64_t size_;
    std::size_t first_;
    std::vector<Number, typename Device::template Allocator<Number>> numbers_;
  };

  // One number in memory of the device.
  template <class Number>
  struct One {
    explicit One(const Number& value) : numbers(1, value) {}
    Number* data() { return numbers.data(); }
    std::vector<Number, typename Device::template Allocator<Number>> numbers;
  };

  // The flags of a check.
  struct Flags {
    explicit Flags(std::int64_t count) : bytes(count) {}
    bool* data() { return reinterpret_cast<bool*>(bytes.data()); }
    Array<char> bytes;
  };

  // The arrays of one variable, with random numbers.
  struct Variable {
    Variable(std::int64_t size, DataType gradient_type, bool has_weight, DataType type,
             float gradient_size, std::mt19937& random)
        : gradient_type(gradient_type),
          has_weight(has_weight),
          type(type),
          gradient(size, random() % 2 * random() % 4),
          halves(size, random() % 2 * random() % 4),
          master(size, random() % 2 * random() % 4),
          weight(size, random() % 2 * random() % 4),
          uniforms(size, random() % 2 * random() % 4) {
      for (int k = 0; k < kMostSlots; ++k) {
        slots.emplace_back(size, random() % 2 * random() % 4);
      }
      std::normal_distribution<float> normal;
      std::uniform_real_distribution<float> uniform;
      // One number in eight is special.
      const auto number = [&](float usual, const auto& special) {
        return random() % 8 == 0 ? special[random() % std::size(special)] : usual;
      };
      for (std::int64_t i = 0; i < size; ++i) {
        gradient[i] = number(gradient_size * normal(random), kSmall);
        if (gradient_type != DataType::kFloat) {
          halves[i] = To16(gradient_type, gradient[i]);
          gradient[i] = From16(gradient_type, halves[i]);
        }
        master[i] = number(number(normal(random), kSmall), kLarge);
        for (auto& slot : slots) slot[i] = number(normal(random), kSmall);
        // Every third weight is not a rounding of its master.
        const float written = i % 3 == 0 ? normal(random) : master[i];
        weight[i] = To16(type, written);
        uniforms[i] = uniform(random);
      }
    }

    std::int64_t size() const { return master.size(); }

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
             weight.is_whole() &&
             std::all_of(slots.begin(), slots.end(),
                         [](const auto& slot) { return slot.is_whole(); });
    }

    DataType gradient_type;
    bool has_weight;
    DataType type;
    Array<float> gradient;
    Array<std::uint16_t> halves;
    Array<float> master;
    std::vector<Array<float>> slots;
    Array<std::uint16_t> weight;
    Array<float> uniforms;
  };

  using Variables = std::vector<Variable>;

  static Variable MakeVariable(std::int64_t size, float gradient_size,
                               std::mt19937& random) {
    return Variable(size, kAllTypes[random() % 3], random() % 2 == 0,
                    kTypes[random() % 2], gradient_size, random);
  }

  static Variables MakeVariables(std::int64_t count, float gradient_size,
                                 std::mt19937& random) {
    Variables variables;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t size = kSizes[random() % std::size(kSizes)];
      variables.push_back(MakeVariable(size, gradient_size, random));
    }
    return variables;
  }

  // Calls work(slots) with the slots of one number.
  template <class Work>
  static void WithSlots(Variable& variable, std::int64_t i, const Work& work) {
    float slots[kMostSlots];
    for (int k = 0; k < kMostSlots; ++k) slots[k] = variable.slots[k][i];
    work(slots);
    for (int k = 0; k < kMostSlots; ++k) variable.slots[k][i] = slots[k];
  }

  void CheckUpdate(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
                   Rounding rounding, Variables variables, bool finite = true) {
    for (Variable& variable : variables) {
      for (std::int64_t i = 0; i < variable.size(); ++i) {
        WithSlots(variable, i, [&](float* slots) { MakePossible(rule, slots); });
      }
    }
    const Variables before = variables;
    const bool is_stochastic = rounding == Rounding::kStochastic;
    std::vector<Parameter> parameters;
    for (Variable& variable : variables) {
      Parameter parameter;
      parameter.gradient = variable.AsGradient();
      for (int k = 0; k < SlotsOf(rule); ++k) {
        parameter.slots[k] = variable.slots[k].data();
      }
      parameter.apply_weight_decay =
          hyperparameters.weight_decay != 0 && parameters.size() % 2 == 0;
      parameter.pair = variable.AsPair();
      if (is_stochastic) parameter.uniforms = variable.uniforms.data();
      parameters.push_back(parameter);
    }
    One<UpdateHyperparameters> given_hyperparameters(hyperparameters);
    Array<char> given_finite(1);
    given_finite[0] = finite;
    Update update;
    update.count = static_cast<std::int64_t>(parameters.size());
    update.parameters = parameters.data();
    update.rule = rule;
    update.rounding = rounding;
    update.hyperparameters = given_hyperparameters.data();
    // Where `finite` is null the step is taken, too.
    if (!finite || parameters.size() % 2 == 0) {
      update.finite = reinterpret_cast<bool*>(given_finite.data());
    }
    ExpectOk(device_.Update(update));

    for (std::size_t k = 0; k < variables.size(); ++k) {
      const Variable& after = variables[k];
      EXPECT(after.is_whole(), "%s wrote behind variable %zu", device_.Name(), k);
      Variable expected = before[k];
      for (std::int64_t i = 0; i < after.size(); ++i) {
        float& w = expected.master[i];
        std::uint16_t& weight = expected.weight[i];
        if (finite) {
          if (after.has_weight) w = SyncedMaster(after.type, weight, w, rounding);
          WithSlots(expected, i, [&](float* slots) {
            Step(rule, hyperparameters, parameters[k].apply_weight_decay,
                 expected.gradient[i], w, slots);
          });
          const float* uniform = is_stochastic ? &expected.uniforms[i] : nullptr;
          if (after.has_weight) weight = Cast(after.type, w, uniform);
        }
        const int number = static_cast<int>(rule);
        EXPECT(SameNumber(after.master[i], w), "%s rule %d: w %.9g, expected %.9g",
               device_.Name(), number, after.master[i], w);
        for (int slot = 0; slot < kMostSlots; ++slot) {
          EXPECT(SameNumber(after.slots[slot][i], expected.slots[slot][i]),
                 "%s rule %d: slot %d", device_.Name(), number, slot);
        }
        EXPECT(SameNumber(after.type, after.weight[i], weight),
               "%s: weight %04x, expected %04x", device_.Name(), after.weight[i], weight);
      }
    }
  }

  void TestUpdate() {
    std::mt19937 random(1);
    for (int number = 0; number < kUpdateRules; ++number) {
      const UpdateRule rule = RuleAt(number);
      for (bool has_options : {false, true}) {
        for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
          for (std::int64_t count : {0, 1, 5, 40}) {
            CheckUpdate(rule, MakeHyperparameters(has_options), rounding,
                        MakeVariables(count, 1000, random));
          }
        }
      }
    }
  }

  // More variables than one launch of a CUDA kernel takes, and longer arrays than a
  // chunk.
  void TestLongArrays() {
    std::mt19937 random(6);
    Variables variables = MakeVariables(150, 1000, random);
    for (std::int64_t size : {4095, 4096, 4097, 9001, 131073}) {
      variables.push_back(MakeVariable(size, 1000, random));
    }
    CheckUpdate(UpdateRule::kAdam, MakeHyperparameters(true), Rounding::kNearest,
                variables);
  }

  void TestSkippedStep() {
    std::mt19937 random(7);
    for (int number = 0; number < kUpdateRules; ++number) {
      CheckUpdate(RuleAt(number), MakeHyperparameters(true), Rounding::kNearest,
                  MakeVariables(5, 1000, random), false);
    }
  }

  static GradientCheck MakeCheck(std::vector<Gradient>& gradients, Variables& variables,
                                 const float* scale, bool* nonfinite) {
    for (Variable& variable : variables) gradients.push_back(variable.AsGradient());
    GradientCheck check;
    check.count = static_cast<std::int64_t>(gradients.size());
    check.gradients = gradients.data();
    check.scale = scale;
    check.nonfinite = nonfinite;
    return check;
  }

  void CheckNonfinite(std::int64_t count, std::mt19937& random) {
    const float kBad[] = {kInf, -kInf, kNaN};
    auto variables = MakeVariables(count, 1, random);
    std::vector<char> is_bad(count, false);
    for (std::int64_t k = 0; k < count; ++k) {
      Variable& variable = variables[k];
      is_bad[k] = variable.size() > 0 && random() % 2 == 0;
      if (!is_bad[k]) continue;
      const std::int64_t i = random() % variable.size();
      variable.gradient[i] = kBad[random() % 3];
      if (variable.gradient_type != DataType::kFloat) {
        variable.halves[i] = To16(variable.gradient_type, variable.gradient[i]);
      }
    }
    const Variables before = variables;
    One<float> scale(random() % 2 ? 8 : 100);
    std::vector<Gradient> gradients;
    Flags nonfinite(count);
    for (std::int64_t k = 0; k < count; ++k) nonfinite.bytes[k] = true;
    const auto check = MakeCheck(gradients, variables, scale.data(), nonfinite.data());
    ExpectOk(device_.Check(check));
    for (std::int64_t k = 0; k < count; ++k) {
      EXPECT(nonfinite.bytes[k] == is_bad[k], "%s: gradient %ld of %ld", device_.Name(),
             k, count);
    }

    // FP32 gradients are un-scaled in place; for others the masters serve as the results.
    std::vector<float*> to;
    for (Variable& variable : variables) {
      const bool in_place = variable.gradient_type == DataType::kFloat;
      to.push_back(in_place ? variable.gradient.data() : variable.master.data());
    }
    ExpectOk(device_.Unscale(check, to.data()));
    EXPECT(nonfinite.bytes.is_whole(), "%s wrote behind the flags", device_.Name());
    for (std::int64_t k = 0; k < count; ++k) {
      EXPECT(variables[k].is_whole(), "%s wrote behind variable %ld", device_.Name(), k);
      EXPECT(nonfinite.bytes[k] == is_bad[k], "%s: gradient %ld of %ld", device_.Name(),
             k, count);
      for (std::int64_t i = 0; i < variables[k].size(); ++i) {
        const float expected = before[k].gradient[i] / *scale.data();
        EXPECT(SameNumber(to[k][i], expected),
               "%s: %.9g, expected %.9g", device_.Name(), to[k][i], expected);
      }
    }
  }

  void TestNonfinite() {
    std::mt19937 random(2);
    for (int trial = 0; trial < 50; ++trial) CheckNonfinite(random() % 20, random);
    CheckNonfinite(200, random);
  }

  // 1e38 is finite, 1e38 / 2^-14 is not.
  void TestDivisionMayOverflow() {
    One<float> number(1e38f);
    Gradient gradient;
    gradient.size = 1;
    gradient.values = number.data();
    for (float value : {0x1p-14f, 1.0f}) {
      One<float> scale(value);
      Flags nonfinite(1);
      GradientCheck check;
      check.count = 1;
      check.gradients = &gradient;
      check.scale = scale.data();
      check.nonfinite = nonfinite.data();
      ExpectOk(device_.Check(check));
      EXPECT(nonfinite.bytes[0] == (value < 1), "%s: scale %g", device_.Name(), value);
    }
  }

  void TestSumOfSquares() {
    std::mt19937 random(3);
    auto variables = MakeVariables(120, 1, random);
    variables.emplace_back(1 << 20, DataType::kFloat, false, DataType::kHalf, 1, random);
    double expected = 0;
    for (const Variable& variable : variables) {
      for (std::int64_t i = 0; i < variable.size(); ++i) {
        const double g = variable.gradient[i] / 8;
        expected += g * g;
      }
    }
    One<float> scale(8);
    Flags nonfinite(static_cast<std::int64_t>(variables.size()));
    std::vector<Gradient> gradients;
    auto check = MakeCheck(gradients, variables, scale.data(), nonfinite.data());
    float first = 0;
    for (int call = 0; call < 3; ++call) {
      One<float> sum_of_squares(0);
      check.sum_of_squares = sum_of_squares.data();
      ExpectOk(device_.Check(check));
      const float sum = *sum_of_squares.data();
      EXPECT(std::abs(sum - expected) <= 0x1p-14 * expected, "%s: %.12g, expected %.12g",
             device_.Name(), sum, expected);
      if (call == 0) first = sum;
      EXPECT(sum == first, "%s: another sum in the next call", device_.Name());
    }
    One<float> none(1);
    check.count = 0;
    check.sum_of_squares = none.data();
    ExpectOk(device_.Check(check));
    EXPECT(*none.data() == 0, "%s: the sum of nothing", device_.Name());
  }

  // SyncMastersFromWeights and CastMasters do what Update does before and after the rule.
  void TestSyncAndCast() {
    std::mt19937 random(4);
    for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      auto variables = MakeVariables(120, 1, random);
      for (Variable& variable : variables) variable.has_weight = true;
      const Variables before = variables;
      std::vector<MasterPair> pairs;
      std::vector<const float*> uniforms;
      for (Variable& variable : variables) {
        pairs.push_back(variable.AsPair());
        uniforms.push_back(variable.uniforms.data());
      }
      const bool is_stochastic = rounding == Rounding::kStochastic;
      const auto count = static_cast<std::int64_t>(pairs.size());
      ExpectOk(device_.SyncMasters(pairs.data(), count, rounding));
      const Variables between = variables;
      ExpectOk(device_.Cast(pairs.data(), count,
                            is_stochastic ? uniforms.data() : nullptr));
      for (std::size_t k = 0; k < variables.size(); ++k) {
        const DataType type = variables[k].type;
        EXPECT(variables[k].is_whole(), "%s wrote behind variable %zu", device_.Name(),
               k);
        for (std::int64_t i = 0; i < variables[k].size(); ++i) {
          const float master = between[k].master[i];
          EXPECT(SameNumber(master, SyncedMaster(type, before[k].weight[i],
                                                 before[k].master[i], rounding)),
                 "%s synchronizes to %.9g", device_.Name(), master);
          const float* uniform = is_stochastic ? &before[k].uniforms[i] : nullptr;
          EXPECT(SameNumber(type, variables[k].weight[i],
                            keras_mp::Cast(type, master, uniform)),
                 "%s casts %.9g", device_.Name(), master);
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

  void TestCastByHand() {
    const CastCase kCasts[] = {
        {DataType::kHalf, 1e6f, -1, 65504},                     // saturates
        {DataType::kHalf, -kInf, -1, -65504},                   //
        {DataType::kHalf, 65520, 0, 65504},                     // no neighbour above
        {DataType::kHalf, 1 + 0x1p-11f, -1, 1},                 // to even
        {DataType::kHalf, 1 + 0x1p-12f, 0.2f, 1 + 0x1p-10f},    // a quarter of the way
        {DataType::kHalf, 1 + 0x1p-12f, 0.3f, 1},               //
        {DataType::kHalf, -1 - 0x1p-12f, 0.8f, -1 - 0x1p-10f},  // down is away from 0
        {DataType::kHalf, -1 - 0x1p-12f, 0.7f, -1},             //
        {DataType::kHalf, 0x1p-26f, 0.2f, 0x1p-24f},            // below the smallest
        {DataType::kHalf, 0x1p-26f, 0.3f, 0},                   //
        {DataType::kHalf, 0, 0, 0},                             //
        {DataType::kBfloat16, 1 + 0x1p-9f, 0.2f, 1 + 0x1p-7f},  //
        {DataType::kBfloat16, 0x1.ffp127f, -1, 0x1.fep127f},
        {DataType::kHalf, kNaN, -1, kNaN},
        {DataType::kHalf, kNaN, 0.5f, kNaN},
        {DataType::kBfloat16, kNaN, 0, kNaN},
    };
    for (const CastCase& one : kCasts) {
      One<float> master(one.master), uniform(one.uniform);
      One<std::uint16_t> weight(0);
      MasterPair pair;
      pair.size = 1;
      pair.master = master.data();
      pair.type = one.type;
      pair.weight = weight.data();
      const float* uniforms = uniform.data();
      ExpectOk(device_.Cast(&pair, 1, one.uniform < 0 ? nullptr : &uniforms));
      const float found = From16(one.type, *weight.data());
      EXPECT(SameNumber(found, one.expected), "%s: %.9g with %g: %.9g", device_.Name(),
             one.master, one.uniform, found);
    }
  }

  void TestErrors() {
    Update update;
    update.count = -1;
    GradientCheck check;
    check.count = -1;
    for (const Status& status :
         {device_.Update(update), device_.Check(check), device_.Unscale(check, nullptr),
          device_.SyncMasters(nullptr, -1, Rounding::kNearest),
          device_.Cast(nullptr, -1, nullptr)}) {
      EXPECT(status.code == StatusCode::kInvalidArgument, "%s: negative count",
             device_.Name());
    }
  }

  void ExpectOk(const Status& status) {
    EXPECT(status.ok(), "%s: %s", device_.Name(), status.message);
  }

  Device device_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_UPDATE_SUITE_H_
