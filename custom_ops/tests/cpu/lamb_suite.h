// Tests of UpdateRule::kLamb, whose step depends on norms of whole variables: slots are
// compared by their bits, masters within the bound of the norms.

#ifndef KERAS_MP_TESTS_CPU_LAMB_SUITE_H_
#define KERAS_MP_TESTS_CPU_LAMB_SUITE_H_

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "common/fixture.h"
#include "common/update_data.h"
#include "common/update_oracle.h"
#include "keras_mp/update.h"

namespace keras_mp {

template <class Device>
class LambSuite {
 public:
  explicit LambSuite(Device device) : device_(device) {}

  void TestAll() {
    TestStep();
    TestStepByHand();
    TestThreads();
    TestSkippedStep();
  }

 private:
  using Data = UpdateData<Device>;
  using Variable = typename Data::Variable;
  using Variables = typename Data::Variables;

  // The sums of squares of `values` are finite in FP32.
  static void MakeFinite(Variable& variable) {
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      float& w = variable.master[i];
      w = std::isnan(w) ? 0 : Limited(w, 1e4f);
      if (variable.has_weight && i % 3 != 0) variable.weight[i] = To16(variable.type, w);
      variable.slots[1][i] = std::abs(variable.slots[1][i]);
    }
  }

  void Run(const UpdateHyperparameters& u, Variables& variables, bool finite = true) {
    std::vector<Parameter> parameters;
    for (Variable& variable : variables) {
      Parameter parameter;
      parameter.gradient = variable.AsGradient();
      for (int k = 0; k < 2; ++k) parameter.slots[k].values = variable.slots[k].data();
      parameter.apply_weight_decay = u.weight_decay != 0 && parameters.size() % 2 == 0;
      parameter.pair = variable.AsPair();
      parameters.push_back(parameter);
    }
    Update update;
    update.count = static_cast<std::int64_t>(parameters.size());
    update.parameters = parameters.data();
    update.rule = UpdateRule::kLamb;
    update.hyperparameters = &u;
    update.finite = &finite;
    EXPECT(device_.Update(update).ok(), "%s: lamb", device_.Name());
  }

  // Where a master moves, at a rate of 1; and the decayed masters.
  struct Expected {
    std::vector<double> directions, decayed;
    double rate;
  };

  static Expected Expect(const UpdateHyperparameters& u, bool decays,
                         Variable& variable) {
    Expected expected;
    double of_masters = 0, of_directions = 0;
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      Fp32 g = Fp32{variable.gradient[i]} / Fp32{u.scale};
      if (u.clip_value != 0) g.value = Limited(g.value, u.clip_value);
      g = g * Fp32{u.clip_factor};
      Fp32 m{variable.slots[0][i]}, v{variable.slots[1][i]}, w{variable.master[i]};
      if (variable.has_weight) {
        w.value = SyncedMaster(variable.type, variable.weight[i], w.value,
                               Rounding::kNearest);
      }
      if (decays) w = w - w * Fp32{u.weight_decay} * Fp32{u.learning_rate};
      m = m + (g - m) * Fp32{u.one_minus_beta_1};
      v = v + (g * g - v) * Fp32{u.one_minus_beta_2};
      variable.slots[0][i] = m.value;
      variable.slots[1][i] = v.value;
      const double root = std::sqrt(static_cast<double>(v.value) / u.v_divisor);
      const double direction =
          static_cast<double>(m.value) / u.m_divisor / (root + u.epsilon);
      expected.directions.push_back(direction);
      expected.decayed.push_back(w.value);
      of_masters += static_cast<double>(w.value) * w.value;
      of_directions += direction * direction;
    }
    const double ratio = of_masters > 0 && of_directions > 0
                             ? std::sqrt(of_masters / of_directions)
                             : 1;
    expected.rate = ratio * u.learning_rate;
    return expected;
  }

  void Check(const UpdateHyperparameters& u, Variables variables) {
    std::for_each(variables.begin(), variables.end(), MakeFinite);
    Variables before = variables;
    Run(u, variables);
    for (std::size_t k = 0; k < variables.size(); ++k) {
      const Variable& after = variables[k];
      EXPECT(after.is_whole(), "%s wrote behind variable %zu", device_.Name(), k);
      const bool decays = u.weight_decay != 0 && k % 2 == 0;
      const Expected expected = Expect(u, decays, before[k]);
      for (std::int64_t i = 0; i < after.size(); ++i) {
        for (int slot = 0; slot < 2; ++slot) {
          EXPECT(SameNumber(after.slots[slot][i], before[k].slots[slot][i]),
                 "%s: slot %d of lamb", device_.Name(), slot);
        }
        const double step = expected.rate * expected.directions[i];
        const double w = expected.decayed[i] - step;
        // Each norm is off by 2^-15, half of what the sum of its squares is; the step has
        // eight roundings besides, and the sum one. A subnormal m / m_divisor is off by
        // 2^-149, and then divided by epsilon or more.
        const double bound = std::abs(step) * (0x1p-14 + 8 * 0x1p-24) +
                             std::abs(w) * 0x1p-24 +
                             0x1p-149 * (1 + expected.rate / u.epsilon);
        EXPECT(std::abs(after.master[i] - w) <= bound, "%s: w %.9g, expected %.9g",
               device_.Name(), after.master[i], w);
        if (after.has_weight) {
          EXPECT(after.weight[i] == Cast(after.type, after.master[i], nullptr),
                 "%s: weight of lamb", device_.Name());
        }
      }
    }
  }

  void TestStep() {
    std::mt19937 random(21);
    for (bool has_options : {false, true}) {
      const UpdateHyperparameters u = MakeHyperparameters(has_options);
      for (std::int64_t count : {0, 1, 5, 40}) {
        Check(u, Data::MakeVariables(count, 1000, random));
      }
      // Several chunks, and a tail.
      Variables variables = Data::MakeVariables(3, 1000, random);
      for (std::int64_t size : {65535, 65536, 65537, 200003}) {
        variables.push_back(Data::MakeVariable(size, 1000, random));
      }
      Check(u, std::move(variables));
    }
  }

  // m = v = 1 after the step, and the direction is 2 everywhere: |w| / |d| is 5 / sqrt(8)
  // for [3, 4], and taken as 1 where the masters or the directions are 0.
  void TestStepByHand() {
    struct Case {
      float w[2], g;
      double expected[2];
    };
    const double move = 0.5 * 2 * 5 / std::sqrt(8.0);
    const Case kCases[] = {{{3, 4}, 1, {3 - move, 4 - move}},
                           {{0, 0}, 1, {-1, -1}},
                           {{3, 4}, 0, {3, 4}}};
    UpdateHyperparameters u;
    u.learning_rate = 0.5f;
    u.one_minus_beta_1 = u.one_minus_beta_2 = 1;
    u.m_divisor = 0.5f;
    u.v_divisor = 1;
    u.epsilon = 1e-30f;
    std::mt19937 random(22);
    for (const Case& one : kCases) {
      Variables variables = {
          Variable(2, DataType::kFloat, false, DataType::kHalf, 1, random)};
      for (int i = 0; i < 2; ++i) {
        variables[0].master[i] = one.w[i];
        variables[0].gradient[i] = one.g;
        variables[0].slots[0][i] = variables[0].slots[1][i] = 0;
      }
      Run(u, variables);
      for (int i = 0; i < 2; ++i) {
        const float w = variables[0].master[i];
        EXPECT(std::abs(w - one.expected[i]) <= 4 * 0x1p-24 * 4, "%s: %.9g, expected %.9g",
               device_.Name(), w, one.expected[i]);
      }
    }
  }

  // The norms are added up in an order that no number of threads changes.
  void TestThreads() {
    std::mt19937 random(23);
    Variables variables;
    for (std::int64_t size : {1000, 300001, 70000}) {
      variables.push_back(Data::MakeVariable(size, 1000, random));
      MakeFinite(variables.back());
    }
    const UpdateHyperparameters u = MakeHyperparameters(true);
    Variables first = variables;
    Run(u, first);
    for (int call = 0; call < 2; ++call) {
      Variables again = variables;
      Run(u, again);
      for (std::size_t k = 0; k < variables.size(); ++k) {
        for (std::int64_t i = 0; i < variables[k].size(); ++i) {
          EXPECT(SameNumber(again[k].master[i], first[k].master[i]),
                 "%s: another step with other threads", device_.Name());
        }
      }
    }
  }

  void TestSkippedStep() {
    std::mt19937 random(24);
    Variables variables = Data::MakeVariables(5, 1000, random);
    const Variables before = variables;
    Run(MakeHyperparameters(true), variables, false);
    for (std::size_t k = 0; k < variables.size(); ++k) {
      for (std::int64_t i = 0; i < variables[k].size(); ++i) {
        EXPECT(SameNumber(variables[k].master[i], before[k].master[i]) &&
                   SameNumber(variables[k].slots[0][i], before[k].slots[0][i]),
               "%s: a skipped step of lamb", device_.Name());
      }
    }
  }

  Device device_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_CPU_LAMB_SUITE_H_
