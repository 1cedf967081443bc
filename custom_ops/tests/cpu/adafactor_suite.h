// Tests of UpdateRule::kAdafactor, whose step depends on means of rows and columns and on
// norms of whole variables: everything is compared with double, within the bounds of sums.

#ifndef KERAS_MP_TESTS_CPU_ADAFACTOR_SUITE_H_
#define KERAS_MP_TESTS_CPU_ADAFACTOR_SUITE_H_

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
class AdafactorSuite {
 public:
  explicit AdafactorSuite(Device device) : device_(device) {}

  void TestAll() {
    TestStep();
    TestStepByHand();
    TestThreads();
    TestSkippedStep();
    TestForms();
  }

 private:
  using Data = UpdateData<Device>;
  using Variable = typename Data::Variable;
  using Doubles = std::vector<double>;

  static UpdateHyperparameters Make(bool has_options) {
    UpdateHyperparameters u = MakeHyperparameters(has_options);
    u.beta_2 = 0.75f;
    u.one_minus_beta_2 = 0.25f;
    u.epsilon = 1e-30f;
    return u;
  }

  // A variable with its matrices, and r and c; those of a vector are null.
  struct Factored {
    Variable variable;
    Matrices matrices;
    std::vector<float> r, c;
  };

  static Factored Make(const Matrices& matrices, std::int64_t size, std::mt19937& random) {
    Factored made{Data::MakeVariable(size, 1000, random), matrices, {}, {}};
    for (std::int64_t i = 0; i < size; ++i) {
      float& w = made.variable.master[i];
      w = std::isnan(w) ? 0 : Limited(w, 1e4f);
      if (made.variable.has_weight && i % 3 != 0) {
        made.variable.weight[i] = To16(made.variable.type, w);
      }
      float& v = made.variable.slots[0][i];
      v = std::abs(v);
    }
    std::uniform_real_distribution<float> second(0.5f, 2.0f);
    made.r.resize(matrices.count * matrices.rows);
    made.c.resize(matrices.count * matrices.columns);
    for (float& x : made.r) x = second(random);
    for (float& x : made.c) x = second(random);
    return made;
  }

  static std::vector<Factored> MakeAll(std::mt19937& random) {
    std::vector<Factored> all;
    for (std::int64_t size : {0, 1, 5, 1024, 1025, 65536, 65537, 140003}) {
      all.push_back(Make({}, size, random));
    }
    const Matrices kMatrices[] = {{1, 1, 1},    {1, 1, 7},     {1, 7, 1},    {1, 3, 4},
                                  {9, 17, 33},  {1, 1025, 64}, {2, 40, 1024}, {1, 5, 1025},
                                  {1, 3, 5000}, {1, 2049, 3},  {1, 33, 9000}, {1, 0, 5},
                                  {0, 4, 5}};
    for (const Matrices& m : kMatrices) {
      all.push_back(Make(m, m.count * m.rows * m.columns, random));
    }
    return all;
  }

  Status Run(const UpdateHyperparameters& u, std::vector<Factored>& all,
             bool finite = true) {
    std::vector<Parameter> parameters;
    std::vector<Matrices> matrices;
    for (Factored& one : all) {
      Parameter parameter;
      parameter.gradient = one.variable.AsGradient();
      parameter.slots[0].values = one.variable.slots[0].data();
      parameter.slots[1].values = one.r.empty() ? nullptr : one.r.data();
      parameter.slots[2].values = one.c.empty() ? nullptr : one.c.data();
      parameter.apply_weight_decay = u.weight_decay != 0 && parameters.size() % 2 == 0;
      parameter.pair = one.variable.AsPair();
      parameters.push_back(parameter);
      matrices.push_back(one.matrices);
    }
    Update update;
    update.count = static_cast<std::int64_t>(parameters.size());
    update.parameters = parameters.data();
    update.matrices = matrices.data();
    update.rule = UpdateRule::kAdafactor;
    update.hyperparameters = &u;
    update.finite = &finite;
    return device_.Update(update);
  }

  // The step in double, in place: of v, r and c; `moves` is what w loses, and `w` has the
  // masters before that.
  struct Expected {
    Doubles v, r, c, moves, w;
  };

  static Expected Expect(const UpdateHyperparameters& u, bool decays,
                         const Factored& one) {
    const Variable& variable = one.variable;
    const auto& [count, rows, columns] = one.matrices;
    const std::int64_t size = variable.size();
    Expected e;
    Doubles gradients, h;
    for (std::int64_t i = 0; i < size; ++i) {
      Fp32 g = Fp32{variable.gradient[i]} / Fp32{u.scale};
      if (u.clip_value != 0) g.value = Limited(g.value, u.clip_value);
      gradients.push_back((g * Fp32{u.clip_factor}).value);
      h.push_back(gradients[i] * gradients[i] + u.epsilon);
      double w = variable.master[i];
      if (variable.has_weight) {
        w = SyncedMaster(variable.type, variable.weight[i], variable.master[i],
                         Rounding::kNearest);
      }
      e.w.push_back(decays ? w - w * u.weight_decay * u.learning_rate : w);
      e.v.push_back(variable.slots[0][i]);
    }
    const auto average = [&](double before, double x) {
      return double{u.beta_2} * before + double{u.one_minus_beta_2} * x;
    };
    e.r.assign(one.r.begin(), one.r.end());
    e.c.assign(one.c.begin(), one.c.end());
    if (count == 0) {
      for (std::int64_t i = 0; i < size; ++i) e.v[i] = average(e.v[i], h[i]);
    } else if (size > 0) {
      Doubles of_rows(count * rows), of_columns(count * columns), of_r(count);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t row = i / columns;
        of_rows[row] += h[i] / columns;
        of_columns[row / rows * columns + i % columns] += h[i] / rows;
      }
      for (std::size_t i = 0; i < e.r.size(); ++i) {
        e.r[i] = average(e.r[i], of_rows[i]);
        of_r[i / rows] += e.r[i] / rows;
      }
      for (std::size_t i = 0; i < e.c.size(); ++i) e.c[i] = average(e.c[i], of_columns[i]);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t row = i / columns;
        e.v[i] = e.r[row] / of_r[row / rows] * e.c[row / rows * columns + i % columns];
      }
    }
    double of_masters = 0, of_directions = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      e.moves.push_back(gradients[i] / std::sqrt(e.v[i]));
      of_masters += e.w[i] * e.w[i] / size;
      of_directions += e.moves[i] * e.moves[i] / size;
    }
    const double rate = u.alpha * std::max<double>(u.epsilon_2, std::sqrt(of_masters)) /
                        std::max(1.0, std::sqrt(of_directions) / u.threshold);
    for (double& move : e.moves) move *= rate;
    return e;
  }

  // A sum of at most 1024 numbers that are not negative is off by 2^-14, and an average has
  // three more roundings. v has three such factors.
  static constexpr double kOfAverage = 0x1p-14 + 8 * 0x1p-24, kOfV = 3.01 * kOfAverage;
  // A root halves an error. The rate has the norms of masters and directions.
  static constexpr double kOfMove = kOfV + 2 * kOfAverage;

  void ExpectNear(const char* what, double found, double expected, double bound) {
    EXPECT(std::abs(found - expected) <= bound, "%s: %s of adafactor %.9g, expected %.9g",
           device_.Name(), what, found, expected);
  }

  void Check(const UpdateHyperparameters& u, std::vector<Factored> all) {
    const std::vector<Factored> before = all;
    EXPECT(Run(u, all).ok(), "%s: adafactor", device_.Name());
    for (std::size_t k = 0; k < all.size(); ++k) {
      const Factored& after = all[k];
      EXPECT(after.variable.is_whole(), "%s wrote behind variable %zu", device_.Name(), k);
      const bool decays = u.weight_decay != 0 && k % 2 == 0;
      const Expected e = Expect(u, decays, before[k]);
      for (std::size_t i = 0; i < e.r.size(); ++i) {
        ExpectNear("r", after.r[i], e.r[i], kOfAverage * e.r[i]);
      }
      for (std::size_t i = 0; i < e.c.size(); ++i) {
        ExpectNear("c", after.c[i], e.c[i], kOfAverage * e.c[i]);
      }
      for (std::int64_t i = 0; i < after.variable.size(); ++i) {
        ExpectNear("v", after.variable.slots[0][i], e.v[i], kOfV * e.v[i]);
        const double move = e.moves[i], w = e.w[i] - move;
        // Weight decay has three roundings, and the difference one.
        const double bound = std::abs(move) * kOfMove +
                             (3 * std::abs(e.w[i]) + std::abs(w)) * 0x1p-24 + 0x1p-126;
        ExpectNear("w", after.variable.master[i], w, bound);
        if (after.variable.has_weight) {
          EXPECT(after.variable.weight[i] ==
                     Cast(after.variable.type, after.variable.master[i], nullptr),
                 "%s: weight of adafactor", device_.Name());
        }
      }
    }
  }

  void TestStep() {
    std::mt19937 random(31);
    for (bool has_options : {false, true}) {
      Check(Make(has_options), MakeAll(random));
      Check(Make(has_options), {});
    }
  }

  // Gradients [[1, 3], [1, 3]], with beta_2 = 0: r = [5, 5], c = [1, 9], so v = g^2 and
  // d = 1 everywhere. rms(w) is 4, alpha 1/2 and the threshold 1/4, by which w loses 1/2.
  void TestStepByHand() {
    UpdateHyperparameters u;
    u.alpha = 0.5f;
    u.one_minus_beta_2 = 1;
    u.epsilon_2 = 1;
    u.threshold = 0.25f;
    std::mt19937 random(32);
    for (const Matrices& matrices : {Matrices{1, 2, 2}, Matrices{}}) {
      std::vector<Factored> all = {
          {Variable(4, DataType::kFloat, false, DataType::kHalf, 1, random),
           matrices,
           std::vector<float>(matrices.rows, 7),
           std::vector<float>(matrices.columns, 7)}};
      Variable& variable = all[0].variable;
      for (int i = 0; i < 4; ++i) {
        variable.master[i] = i < 2 ? 4.0f : -4.0f;
        variable.gradient[i] = i % 2 ? 3.0f : 1.0f;
        variable.slots[0][i] = 7;
      }
      EXPECT(Run(u, all).ok(), "%s: adafactor", device_.Name());
      for (int i = 0; i < 4; ++i) {
        EXPECT(variable.slots[0][i] == (i % 2 ? 9 : 1), "%s: v", device_.Name());
        EXPECT(variable.master[i] == (i < 2 ? 3.5f : -4.5f), "%s: w %.9g", device_.Name(),
               variable.master[i]);
      }
      if (matrices.count == 0) continue;
      EXPECT((all[0].r == std::vector<float>{5, 5}), "%s: r", device_.Name());
      EXPECT((all[0].c == std::vector<float>{1, 9}), "%s: c", device_.Name());
    }
  }

  static bool AreSame(const Factored& one, const Factored& other) {
    bool same = one.r == other.r && one.c == other.c;
    for (std::int64_t i = 0; i < one.variable.size(); ++i) {
      same = same && SameNumber(one.variable.master[i], other.variable.master[i]) &&
             SameNumber(one.variable.slots[0][i], other.variable.slots[0][i]);
    }
    return same;
  }

  // Sums are added up in an order that no number of threads changes.
  void TestThreads() {
    std::mt19937 random(33);
    const std::vector<Factored> before = MakeAll(random);
    std::vector<Factored> first = before;
    EXPECT(Run(Make(true), first).ok(), "%s: adafactor", device_.Name());
    for (int call = 0; call < 2; ++call) {
      std::vector<Factored> again = before;
      EXPECT(Run(Make(true), again).ok(), "%s: adafactor", device_.Name());
      for (std::size_t k = 0; k < before.size(); ++k) {
        EXPECT(AreSame(again[k], first[k]), "%s: another step with other threads",
               device_.Name());
      }
    }
  }

  void TestSkippedStep() {
    std::mt19937 random(34);
    std::vector<Factored> all = MakeAll(random);
    const std::vector<Factored> before = all;
    EXPECT(Run(Make(true), all, false).ok(), "%s: adafactor", device_.Name());
    for (std::size_t k = 0; k < all.size(); ++k) {
      EXPECT(AreSame(all[k], before[k]), "%s: a skipped step of adafactor",
             device_.Name());
    }
  }

  void TestForms() {
    std::mt19937 random(35);
    for (const Matrices& other : {Matrices{1, 1, 2}, Matrices{1, 0, 2}, Matrices{1, 2, 0}}) {
      std::vector<Factored> part = {Make({1, 2, 2}, 4, random)};
      part[0].matrices = other;
      EXPECT(!Run(Make(false), part).ok(), "%s: a part of a variable", device_.Name());
    }
    std::vector<Factored> without = {Make({1, 2, 2}, 4, random)};
    without[0].c.clear();
    EXPECT(!Run(Make(false), without).ok(), "%s: no c", device_.Name());
  }

  Device device_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_CPU_ADAFACTOR_SUITE_H_
