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
#include "common/update_data.h"
#include "common/update_oracle.h"
#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

template <class Device>
class UpdateSuite {
 public:
  explicit UpdateSuite(Device device) : device_(device) {}

  void TestAll() {
    TestUpdate();
    TestLongArrays();
    TestSkippedStep();
    TestLargest();
    TestLargestByHand();
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
      const UpdateRule rule = RuleAt(static_cast<int>(random() % kElementwiseRules));
      CheckUpdate(rule, MakeHyperparameters(random() % 2), rounding,
                  Data::MakeVariables(random() % 6, 1000, random));
      CheckLargest(random() % 6, random);
    }
  }

  // Of sparse gradients, which only the CPU takes.
  void TestPowers() {
    std::mt19937 random(8);
    for (int number = 0; number < kElementwiseRules; ++number) {
      const UpdateRule rule = RuleAt(number);
      if (TakesPowers(rule)) {
        for (bool finite : {true, false}) {
          CheckUpdate(rule, MakeHyperparameters(true), Rounding::kNearest,
                      Data::MakeVariables(40, 1000, random), finite, true);
        }
      } else {
        ExpectNoPowers(rule);
      }
    }
  }

 private:
  using Data = UpdateData<Device>;
  template <class Number>
  using Array = typename Data::template Array<Number>;
  template <class Number>
  using One = typename Data::template One<Number>;
  using Variable = typename Data::Variable;
  using Variables = typename Data::Variables;

  // Calls work(slots) with the slots of one number.
  template <class Work>
  static void WithSlots(Variable& variable, std::int64_t i, const Work& work) {
    float slots[kMostSlots];
    for (int k = 0; k < kMostSlots; ++k) slots[k] = variable.slots[k][i];
    work(slots);
    for (int k = 0; k < kMostSlots; ++k) variable.slots[k][i] = slots[k];
  }

  void CheckUpdate(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
                   Rounding rounding, Variables variables, bool finite = true,
                   bool has_powers = false) {
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
        parameter.slots[k].values = variable.slots[k].data();
      }
      parameter.apply_weight_decay =
          hyperparameters.weight_decay != 0 && parameters.size() % 2 == 0;
      parameter.pair = variable.AsPair();
      if (is_stochastic) parameter.uniforms = variable.uniforms.data();
      // Those of every third variable are of its gradient itself.
      if (has_powers && parameters.size() % 3 != 1) {
        parameter.powers = variable.powers.data();
      }
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
            const float* power = parameters[k].powers ? &expected.powers[i] : nullptr;
            Step(rule, hyperparameters, parameters[k].apply_weight_decay,
                 expected.gradient[i], power, w, slots);
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
    for (int number = 0; number < kElementwiseRules; ++number) {
      const UpdateRule rule = RuleAt(number);
      for (bool has_options : {false, true}) {
        for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
          for (std::int64_t count : {0, 1, 5, 40}) {
            CheckUpdate(rule, MakeHyperparameters(has_options), rounding,
                        Data::MakeVariables(count, 1000, random));
          }
        }
      }
    }
  }

  void ExpectNoPowers(UpdateRule rule) {
    float number = 1;
    Parameter parameter;
    parameter.gradient = {1, DataType::kFloat, &number};
    parameter.pair.master = parameter.slots[0].values = parameter.slots[1].values =
        &number;
    parameter.pair.size = 1;
    parameter.powers = &number;
    const UpdateHyperparameters hyperparameters;
    Update update;
    update.count = 1;
    update.parameters = &parameter;
    update.rule = rule;
    update.hyperparameters = &hyperparameters;
    EXPECT(device_.Update(update).code == StatusCode::kInvalidArgument,
           "%s rule %d took powers", device_.Name(), static_cast<int>(rule));
  }

  // More variables than one launch of a CUDA kernel takes, and longer arrays than a
  // chunk.
  void TestLongArrays() {
    std::mt19937 random(6);
    Variables variables = Data::MakeVariables(150, 1000, random);
    for (std::int64_t size : {4095, 4096, 4097, 9001, 131073}) {
      variables.push_back(Data::MakeVariable(size, 1000, random));
    }
    CheckUpdate(UpdateRule::kAdam, MakeHyperparameters(true), Rounding::kNearest,
                variables);
  }

  void TestSkippedStep() {
    std::mt19937 random(7);
    for (int number = 0; number < kElementwiseRules; ++number) {
      CheckUpdate(RuleAt(number), MakeHyperparameters(true), Rounding::kNearest,
                  Data::MakeVariables(5, 1000, random), false);
    }
  }

  static GradientCheck MakeCheck(std::vector<Gradient>& gradients, Variables& variables,
                                 const float* scale, float* largest) {
    for (Variable& variable : variables) gradients.push_back(variable.AsGradient());
    GradientCheck check;
    check.count = static_cast<std::int64_t>(gradients.size());
    check.gradients = gradients.data();
    check.scale = scale;
    check.largest = largest;
    return check;
  }

  void ExpectLargest(const Array<float>& largest, const Variables& variables,
                     float scale) {
    EXPECT(largest.is_whole(), "%s wrote behind the magnitudes", device_.Name());
    for (std::size_t k = 0; k < variables.size(); ++k) {
      const auto i = static_cast<std::int64_t>(k);
      float expected = 0;
      for (std::int64_t j = 0; j < variables[k].size(); ++j) {
        const float magnitude = std::abs(variables[k].gradient[j] / scale);
        expected = LargerMagnitude(magnitude, expected);
      }
      EXPECT(SameNumber(largest[i], expected), "%s: largest %.9g, expected %.9g",
             device_.Name(), largest[i], expected);
    }
  }

  // Half of the variables have an inf or NaN, or both.
  void CheckLargest(std::int64_t count, std::mt19937& random) {
    const float kBad[] = {kInf, -kInf, kNaN};
    auto variables = Data::MakeVariables(count, 1, random);
    for (Variable& variable : variables) {
      if (variable.size() == 0) continue;
      for (unsigned bad = random() % 2 * (1 + random() % 2); bad > 0; --bad) {
        const std::int64_t i = random() % variable.size();
        variable.gradient[i] = kBad[random() % 3];
        if (variable.gradient_type != DataType::kFloat) {
          variable.halves[i] = To16(variable.gradient_type, variable.gradient[i]);
        }
      }
    }
    const Variables before = variables;
    One<float> scale(random() % 2 ? 8 : 100);
    std::vector<Gradient> gradients;
    Array<float> largest(count);
    for (std::int64_t k = 0; k < count; ++k) largest[k] = kNaN;
    const auto check = MakeCheck(gradients, variables, scale.data(), largest.data());
    ExpectOk(device_.Check(check));
    ExpectLargest(largest, before, *scale.data());

    // FP32 gradients are un-scaled in place; for others the masters serve as the results.
    std::vector<float*> to;
    for (Variable& variable : variables) {
      const bool in_place = variable.gradient_type == DataType::kFloat;
      to.push_back(in_place ? variable.gradient.data() : variable.master.data());
    }
    ExpectOk(device_.Unscale(check, to.data()));
    ExpectLargest(largest, before, *scale.data());
    for (std::int64_t k = 0; k < count; ++k) {
      EXPECT(variables[k].is_whole(), "%s wrote behind variable %ld", device_.Name(), k);
      for (std::int64_t i = 0; i < variables[k].size(); ++i) {
        const float expected = before[k].gradient[i] / *scale.data();
        EXPECT(SameNumber(to[k][i], expected),
               "%s: %.9g, expected %.9g", device_.Name(), to[k][i], expected);
      }
    }
  }

  void TestLargest() {
    std::mt19937 random(2);
    for (int trial = 0; trial < 50; ++trial) CheckLargest(random() % 20, random);
    CheckLargest(200, random);
  }

  struct LargestCase {
    std::vector<float> numbers;
    float scale, expected;
  };

  void TestLargestByHand() {
    const LargestCase kCases[] = {
        {{3, -8, 2}, 2, 4},
        {{0, -0.0f}, 2, 0},
        {{}, 2, 0},
        {{-0x1p-149f}, 1, 0x1p-149f},
        {{1e38f}, 1, 1e38f},
        {{1e38f}, 0x1p-14f, kInf},  // the quotient overflows
        {{kNaN, kInf, 1}, 1, kNaN},
        {{1, -kInf, -kNaN}, 1, kNaN},
    };
    for (const LargestCase& one : kCases) {
      const auto size = static_cast<std::int64_t>(one.numbers.size());
      Array<float> numbers(size);
      for (std::int64_t i = 0; i < size; ++i) numbers[i] = one.numbers[i];
      One<float> scale(one.scale), largest(-1);
      Gradient gradient;
      gradient.size = size;
      gradient.values = numbers.data();
      GradientCheck check;
      check.count = 1;
      check.gradients = &gradient;
      check.scale = scale.data();
      check.largest = largest.data();
      ExpectOk(device_.Check(check));
      EXPECT(SameNumber(*largest.data(), one.expected), "%s: %.9g, expected %.9g",
             device_.Name(), *largest.data(), one.expected);
    }
  }

  void TestSumOfSquares() {
    std::mt19937 random(3);
    auto variables = Data::MakeVariables(120, 1, random);
    variables.emplace_back(1 << 20, DataType::kFloat, false, DataType::kHalf, 1, random);
    double expected = 0;
    for (const Variable& variable : variables) {
      for (std::int64_t i = 0; i < variable.size(); ++i) {
        const double g = variable.gradient[i] / 8;
        expected += g * g;
      }
    }
    One<float> scale(8);
    Array<float> largest(static_cast<std::int64_t>(variables.size()));
    std::vector<Gradient> gradients;
    auto check = MakeCheck(gradients, variables, scale.data(), largest.data());
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
      auto variables = Data::MakeVariables(120, 1, random);
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
