// Tests of the compressed forms of masters and slots in update.h against
// common/compressed_oracle.h. `Device` is that of common/update_suite.h.

#ifndef KERAS_MP_TESTS_COMMON_COMPRESSED_SUITE_H_
#define KERAS_MP_TESTS_COMMON_COMPRESSED_SUITE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "common/compressed_oracle.h"
#include "common/fixture.h"
#include "common/update_data.h"
#include "common/update_oracle.h"
#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

// How a variable holds its master.
enum class Form { kMaster, kPair, kRemainder, kShortRemainder, kWeight };

template <class Device>
class CompressedSuite {
 public:
  explicit CompressedSuite(Device device) : device_(device) {}

  // `masters`: how many random ones are split and joined.
  void TestAll(int masters) {
    TestUpdate();
    TestSkippedStep();
    TestMastersStay(masters);
    TestMasterByHand();
    TestShortMastersStay(masters);
    TestShortMasterByHand();
    TestShortMastersAreUnbiased();
    for (int bits : {8, 4}) {
      for (SlotCode code : {SlotCode::kSigned, SlotCode::kUnsigned}) {
        TestEveryCodeStays(code, bits);
        TestCodesAreUnbiased(code, bits);
      }
      TestSecondMomentsNeverVanish(bits);
    }
    TestEncodeByHand();
    TestPairsByHand();
    TestErrors();
  }

 private:
  using Data = UpdateData<Device>;
  template <class Number>
  using Array = typename Data::template Array<Number>;
  template <class Number>
  using One = typename Data::template One<Number>;

  static constexpr std::int64_t kGroupSizes[] = {0,    1,    31,   32,  33,
                                                 1023, 1024, 1025, 5000};

  // A variable and its slots, of which slot k has codes where is_coded[k].
  struct Variable {
    Variable(Form form, DataType type, std::int64_t size, std::mt19937& random)
        : form(form),
          type(type),
          gradient(size, Skipped(random)),
          master(size, Skipped(random)),
          weight(size, Skipped(random)),
          remainder(size, Skipped(random)),
          short_remainder(size, Skipped(random)) {
      for (int k = 0; k < kMostSlots; ++k) {
        is_coded[k] = false;
        values.emplace_back(size, Skipped(random));
        codes.emplace_back(size, Skipped(random));
        exponents.emplace_back(SlotGroupsOf(size), Skipped(random));
        pairs.emplace_back(SlotPairsOf(size), Skipped(random));
      }
    }

    // The code of an element of a slot.
    int CodeOf(int k, std::int64_t i) const {
      if (bits == 8) return codes[k][i];
      const std::uint8_t both = pairs[k][PairOf(i)];
      return IsLow(i) ? both & 15 : both >> 4;
    }

    void SetCode(int k, std::int64_t i, int code) {
      if (bits == 8) {
        codes[k][i] = static_cast<std::uint8_t>(code);
        return;
      }
      std::uint8_t& both = pairs[k][PairOf(i)];
      both = static_cast<std::uint8_t>(IsLow(i) ? (both & 0xf0) | code
                                                : (both & 15) | code << 4);
    }

    static std::int64_t PairOf(std::int64_t i) {
      return i / kSlotGroup * (kSlotGroup / 2) + i % (kSlotGroup / 2);
    }

    static bool IsLow(std::int64_t i) { return i % kSlotGroup < kSlotGroup / 2; }

    static std::size_t Skipped(std::mt19937& random) {
      return random() % 2 * random() % 4;
    }

    std::int64_t size() const { return gradient.size(); }

    Parameter AsParameter(UpdateRule rule) {
      Parameter parameter;
      parameter.gradient = {size(), DataType::kFloat, gradient.data()};
      MasterPair& pair = parameter.pair;
      pair.size = size();
      pair.type = type;
      if (form == Form::kMaster || form == Form::kPair) pair.master = master.data();
      if (form != Form::kMaster) pair.weight = weight.data();
      if (form == Form::kRemainder) pair.remainder = remainder.data();
      if (form == Form::kShortRemainder) pair.short_remainder = short_remainder.data();
      for (int k = 0; k < SlotsOf(rule); ++k) {
        if (is_coded[k]) {
          (bits == 8 ? parameter.slots[k].codes : parameter.slots[k].pairs) =
              bits == 8 ? codes[k].data() : pairs[k].data();
          parameter.slots[k].exponents = exponents[k].data();
        } else {
          parameter.slots[k].values = values[k].data();
        }
      }
      return parameter;
    }

    bool is_whole() const {
      const auto whole = [](const auto& array) { return array.is_whole(); };
      return whole(gradient) && whole(master) && whole(weight) && whole(remainder) &&
             whole(short_remainder) &&
             std::all_of(values.begin(), values.end(), whole) &&
             std::all_of(codes.begin(), codes.end(), whole) &&
             std::all_of(pairs.begin(), pairs.end(), whole) &&
             std::all_of(exponents.begin(), exponents.end(), whole);
    }

    Form form;
    DataType type;
    bool is_coded[kMostSlots];
    int bits = 8;  // of each code
    Array<float> gradient, master;
    Array<std::uint16_t> weight;
    Array<std::int16_t> remainder;
    Array<std::int8_t> short_remainder;
    std::vector<Array<float>> values;
    std::vector<Array<std::uint8_t>> codes, exponents, pairs;
  };

  using Variables = std::vector<Variable>;

  // One number in eight is special.
  static Variable MakeVariable(UpdateRule rule, std::int64_t size, std::mt19937& random) {
    Variable variable(static_cast<Form>(random() % 5), kTypes[random() % 2], size,
                      random);
    std::normal_distribution<float> normal;
    const auto number = [&](float usual, const auto& special) {
      return random() % 8 == 0 ? special[random() % std::size(special)] : usual;
    };
    variable.bits = random() % 2 ? 8 : 4;
    for (int k = 0; k < SlotsOf(rule); ++k) {
      for (std::int64_t i = 0; i < variable.pairs[k].size(); ++i) {
        variable.pairs[k][i] = static_cast<std::uint8_t>(random());
      }
      variable.is_coded[k] =
          SlotCodeOf(rule, k) != SlotCode::kNone && random() % 3 != 0;
      for (std::int64_t i = 0; i < variable.exponents[k].size(); ++i) {
        variable.exponents[k][i] =
            static_cast<std::uint8_t>(random() % 8 == 0 ? 0 : 110 + random() % 24);
      }
    }
    const bool has_bad_gradient = random() % 4 == 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const float gradient = number(1000 * normal(random), kSmall);
      variable.gradient[i] =
          has_bad_gradient && random() % 64 == 0 ? kLarge[random() % 8] : gradient;
      variable.master[i] = number(number(normal(random), kSmall), kLarge);
      variable.weight[i] = To16(variable.type, variable.master[i]);
      variable.remainder[i] = static_cast<std::int16_t>(random() % 4 ? random() : 0);
      variable.short_remainder[i] =
          static_cast<std::int8_t>(random() % 4 ? random() : 0);
      float slots[kMostSlots];
      for (float& slot : slots) slot = number(normal(random), kSmall);
      MakePossible(rule, slots);
      for (int k = 0; k < kMostSlots; ++k) {
        variable.values[k][i] = slots[k];
        variable.codes[k][i] = static_cast<std::uint8_t>(random());
      }
    }
    return variable;
  }

  static UpdateHyperparameters WithNoise(UpdateHyperparameters u, std::mt19937& random) {
    u.noise_low = static_cast<float>(random() % 65536);
    u.noise_high = static_cast<float>(random() % 65536);
    return u;
  }

  Status Run(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
             Variables& variables, bool finite = true) {
    std::vector<Parameter> parameters;
    for (Variable& variable : variables) {
      parameters.push_back(variable.AsParameter(rule));
      parameters.back().apply_weight_decay =
          hyperparameters.weight_decay != 0 && parameters.size() % 2 == 0;
    }
    One<UpdateHyperparameters> given_hyperparameters(hyperparameters);
    Array<char> given_finite(1);
    given_finite[0] = finite;
    Update update;
    update.count = static_cast<std::int64_t>(parameters.size());
    update.parameters = parameters.data();
    update.rule = rule;
    update.hyperparameters = given_hyperparameters.data();
    update.finite = reinterpret_cast<bool*>(given_finite.data());
    return device_.Update(update);
  }

  // What a step makes of a variable.
  static void Expect(UpdateRule rule, const UpdateHyperparameters& u, bool decays,
                     Variable& variable) {
    std::vector<std::vector<float>> slots(kMostSlots);
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      const DataType type = variable.type;
      std::uint16_t& weight = variable.weight[i];
      float master = variable.master[i], expanded[kMostSlots];
      if (variable.form == Form::kPair) {
        master = SyncedMaster(type, weight, master, Rounding::kNearest);
      } else if (variable.form == Form::kRemainder) {
        master = JoinedMaster(type, weight, variable.remainder[i]);
      } else if (variable.form == Form::kShortRemainder) {
        master = JoinedShort(type, weight, variable.short_remainder[i]);
      } else if (variable.form == Form::kWeight) {
        master = From16(type, weight);
      }
      for (int k = 0; k < kMostSlots; ++k) {
        expanded[k] = variable.is_coded[k]
                          ? Decoded(SlotCodeOf(rule, k), variable.bits,
                                    variable.CodeOf(k, i),
                                    variable.exponents[k][i / kSlotGroup])
                          : variable.values[k][i];
      }
      Step(rule, u, decays, variable.gradient[i], nullptr, master, expanded);
      for (int k = 0; k < kMostSlots; ++k) {
        slots[k].push_back(expanded[k]);
        if (!variable.is_coded[k]) variable.values[k][i] = expanded[k];
      }
      if (variable.form == Form::kMaster || variable.form == Form::kPair) {
        variable.master[i] = master;
      }
      const float uniform = UniformOf(u, i);
      if (variable.form != Form::kMaster) {
        weight = Cast(type, master, variable.form == Form::kWeight ? &uniform : nullptr);
      }
      if (variable.form == Form::kRemainder) {
        variable.remainder[i] = RemainderOf(type, master, weight);
      } else if (variable.form == Form::kShortRemainder) {
        const ShortPair split = SplitShort(type, master, RandomBits(u, i, kMostSlots));
        weight = split.weight;
        variable.short_remainder[i] = split.remainder;
      }
    }
    for (int k = 0; k < kMostSlots; ++k) {
      if (variable.is_coded[k]) Encode(SlotCodeOf(rule, k), u, k, slots[k], variable);
    }
  }

  static void Encode(SlotCode code, const UpdateHyperparameters& u, int k,
                     const std::vector<float>& x, Variable& variable) {
    const int bits = variable.bits;
    if (bits == 4) std::fill_n(variable.pairs[k].data(), variable.pairs[k].size(), 0);
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      const std::int64_t group = i / kSlotGroup, begin = group * kSlotGroup;
      const std::int64_t count = std::min(kSlotGroup, variable.size() - begin);
      variable.exponents[k][group] = GroupExponent(code, bits, &x[begin], count);
      variable.SetCode(k, i,
                       Encoded(code, bits, x[i], variable.exponents[k][group],
                               RandomBits(u, i, k)));
    }
  }

  void ExpectSame(UpdateRule rule, const Variable& after, const Variable& expected) {
    const char* name = device_.Name();
    const int number = static_cast<int>(rule), form = static_cast<int>(after.form);
    EXPECT(after.is_whole(), "%s wrote behind a variable", name);
    for (std::int64_t i = 0; i < after.size(); ++i) {
      EXPECT(SameNumber(after.master[i], expected.master[i]),
             "%s rule %d form %d: master %.9g, expected %.9g", name, number, form,
             after.master[i], expected.master[i]);
      EXPECT(SameNumber(after.type, after.weight[i], expected.weight[i]),
             "%s rule %d form %d: weight %04x, expected %04x", name, number, form,
             after.weight[i], expected.weight[i]);
      EXPECT(after.remainder[i] == expected.remainder[i],
             "%s rule %d: remainder %d, expected %d", name, number, after.remainder[i],
             expected.remainder[i]);
      EXPECT(after.short_remainder[i] == expected.short_remainder[i],
             "%s rule %d: short remainder %d, expected %d", name, number,
             after.short_remainder[i], expected.short_remainder[i]);
      for (int k = 0; k < kMostSlots; ++k) {
        EXPECT(SameNumber(after.values[k][i], expected.values[k][i]),
               "%s rule %d: slot %d: %.9g, expected %.9g", name, number, k,
               after.values[k][i], expected.values[k][i]);
        EXPECT(after.codes[k][i] == expected.codes[k][i],
               "%s rule %d: slot %d: element %ld has code %02x, expected %02x", name,
               number, k, i, after.codes[k][i], expected.codes[k][i]);
        const std::int64_t group = i / kSlotGroup;
        EXPECT(after.exponents[k][group] == expected.exponents[k][group],
               "%s rule %d: slot %d: exponent %d, expected %d", name, number, k,
               after.exponents[k][group], expected.exponents[k][group]);
        // Behind the last element, too.
        for (std::int64_t j = 0; j < SlotPairsOf(i + 1); ++j) {
          if (i + 1 < after.size()) break;
          EXPECT(after.pairs[k][j] == expected.pairs[k][j],
                 "%s rule %d: slot %d: pair %ld is %02x, expected %02x", name, number, k,
                 j, after.pairs[k][j], expected.pairs[k][j]);
        }
      }
    }
  }

  void CheckUpdate(UpdateRule rule, const UpdateHyperparameters& u, Variables variables,
                   bool finite = true) {
    Variables expected = variables;
    ExpectOk(Run(rule, u, variables, finite));
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const bool decays = u.weight_decay != 0 && i % 2 == 1;
      if (finite) Expect(rule, u, decays, expected[i]);
      ExpectSame(rule, variables[i], expected[i]);
    }
  }

  void TestUpdate() {
    std::mt19937 random(11);
    for (int number = 0; number < kElementwiseRules; ++number) {
      for (bool has_options : {false, true}) {
        Variables variables;
        for (std::int64_t size : kGroupSizes) {
          variables.push_back(MakeVariable(RuleAt(number), size, random));
        }
        CheckUpdate(RuleAt(number), WithNoise(MakeHyperparameters(has_options), random),
                    variables);
      }
    }
    // More variables than one launch of a CUDA kernel takes, and more than one chunk.
    Variables many;
    for (int i = 0; i < 60; ++i) {
      many.push_back(MakeVariable(UpdateRule::kAdam, 1 + random() % 99, random));
    }
    many.push_back(MakeVariable(UpdateRule::kAdam, 70001, random));
    CheckUpdate(UpdateRule::kAdam, WithNoise(MakeHyperparameters(true), random), many);
  }

  void TestSkippedStep() {
    std::mt19937 random(12);
    for (int number = 0; number < kElementwiseRules; ++number) {
      Variables variables;
      for (int i = 0; i < 4; ++i) {
        variables.push_back(MakeVariable(RuleAt(number), 33, random));
      }
      CheckUpdate(RuleAt(number), MakeHyperparameters(true), variables, false);
    }
  }

  // A step of SGD from 0 to the master, the negative gradient.
  Variable SplitMasters(DataType type, const std::vector<float>& masters,
                        Form form = Form::kRemainder,
                        const UpdateHyperparameters& noise = {}) {
    std::mt19937 random(13);
    const auto size = static_cast<std::int64_t>(masters.size());
    Variables variables = {Variable(form, type, size, random)};
    Variable& variable = variables[0];
    for (std::int64_t i = 0; i < size; ++i) variable.gradient[i] = -masters[i];
    UpdateHyperparameters u = noise;
    u.learning_rate = 1;
    ExpectOk(Run(UpdateRule::kSgd, u, variables));
    return variable;
  }

  // Random masters are their weights and remainders exactly, and stay so in a step of 0.
  void TestMastersStay(int count) {
    std::mt19937 random(14);
    for (DataType type : kTypes) {
      const bool is_half = type == DataType::kHalf;
      std::vector<float> masters;
      while (masters.size() < static_cast<std::size_t>(count)) {
        const auto bits = static_cast<std::uint32_t>(random());
        const float master = FromBits(bits), size = std::abs(master);
        const bool is_tie = (bits & 0x1ffffu) == 0x8000u;  // above an even bfloat16
        // 2^-14 (1 + 2^-10) and above is rounded to more than 2^-14.
        const bool is_exact = is_half ? size >= 0x1.004p-14f && size <= 65520
                                      : size >= 0x1p-126f && size <= 3e38f && !is_tie;
        if (is_exact) masters.push_back(master);
      }
      const Variable split = SplitMasters(type, masters);
      Variables again = {split};
      for (int i = 0; i < count; ++i) again[0].gradient[i] = 0;
      ExpectOk(Run(UpdateRule::kSgd, UpdateHyperparameters{}, again));
      for (int i = 0; i < count; ++i) {
        const std::uint16_t weight = split.weight[i];
        const float joined = JoinedMaster(type, weight, split.remainder[i]);
        EXPECT(joined == masters[i], "%s: %.9g became %.9g", device_.Name(), masters[i],
               joined);
        EXPECT(weight == Cast(type, masters[i], nullptr), "%s: weight %04x of %.9g",
               device_.Name(), weight, masters[i]);
        EXPECT(again[0].weight[i] == weight &&
                   again[0].remainder[i] == split.remainder[i],
               "%s: %.9g did not stay", device_.Name(), masters[i]);
      }
    }
  }

  struct MasterCase {
    DataType type;
    float master, expected;
  };

  void TestMasterByHand() {
    constexpr DataType kHalf = DataType::kHalf, kBfloat16 = DataType::kBfloat16;
    const MasterCase kCases[] = {
        {kHalf, 0, 0},
        {kHalf, 65504 + 15, 65504 + 15},
        {kHalf, 65520, 65520},                   // half an ulp beyond the largest
        {kHalf, 1e30f, 65520},
        {kHalf, -kInf, -65520},
        {kHalf, kNaN, kNaN},
        {kHalf, 0x1p-17f, 0x1p-17f},
        {kHalf, 0x1.fffffep-16f, 0x1.fffffep-16f},
        {kHalf, 3 * 0x1p-41f, 0x1p-39f},         // to even, in units of 2^-40
        {kHalf, 0x1p-25f, 0x7fffp-40f},          // half-way above 0
        {kHalf, -0x1p-25f, -0x1p-25f},           // the other limit is in range
        {kHalf, 0x1p-45f, 0},                    // below half a unit
        {kBfloat16, 1 + 0x1p-8f, 0x1.00fffep0f}, // half-way above an even weight
        {kBfloat16, 1 + 3 * 0x1p-8f, 1 + 3 * 0x1p-8f},
        {kBfloat16, 3e38f, 3e38f},
        {kBfloat16, kNaN, kNaN},
        {kBfloat16, -1e30f, -1e30f},
    };
    for (const MasterCase& one : kCases) {
      const Variable split = SplitMasters(one.type, {one.master});
      const float found = JoinedMaster(one.type, split.weight[0], split.remainder[0]);
      EXPECT(SameNumber(found, one.expected), "%s: %.9g became %.9g, expected %.9g",
             device_.Name(), one.master, found, one.expected);
    }
  }

  // A step of 0 changes no master of 24 bits, whatever its random numbers, and its weight
  // is its nearest. Bfloat16 masters below 2^-110, which are fixed-point, may move where
  // they are beside a place half-way between two weights.
  void TestShortMastersStay(int count) {
    std::mt19937 random(20);
    for (DataType type : kTypes) {
      std::vector<float> masters;
      while (masters.size() < static_cast<std::size_t>(count)) {
        const float master = FromBits(static_cast<std::uint32_t>(random()));
        const bool stays = type == DataType::kHalf || std::abs(master) >= 0x1p-110f;
        if (std::isfinite(master) && stays) masters.push_back(master);
      }
      const Variable split =
          SplitMasters(type, masters, Form::kShortRemainder, WithNoise({}, random));
      Variables again = {split};
      for (int i = 0; i < count; ++i) again[0].gradient[i] = 0;
      ExpectOk(Run(UpdateRule::kSgd, WithNoise({}, random), again));
      for (int i = 0; i < count; ++i) {
        const std::uint16_t weight = split.weight[i];
        const float joined = JoinedShort(type, weight, split.short_remainder[i]);
        EXPECT(again[0].weight[i] == weight &&
                   again[0].short_remainder[i] == split.short_remainder[i],
               "%s: %.9g did not stay %.9g", device_.Name(), masters[i], joined);
        EXPECT(Cast(type, joined, nullptr) == weight, "%s: weight %04x of %.9g",
               device_.Name(), weight, joined);
      }
    }
  }

  void TestShortMasterByHand() {
    constexpr DataType kHalf = DataType::kHalf, kBfloat16 = DataType::kBfloat16;
    const MasterCase kCases[] = {
        {kHalf, 0, 0},
        {kHalf, 1 + 0x1p-18f, 1 + 0x1p-18f},
        {kHalf, -1 + 0x1p-19f, -1 + 0x1p-19f},  // below a power of two
        {kHalf, 65504 + 15, 65504 + 15},
        {kHalf, 1e30f, 65519.875f},
        {kHalf, -kInf, -65519.875f},
        {kHalf, kNaN, kNaN},
        {kHalf, 0x1p-14f + 0x1p-32f, 0x1p-14f + 0x1p-32f},
        {kHalf, -0x1p-15f + 0x1p-32f, -0x1p-15f + 0x1p-32f},
        {kHalf, 0x1p-32f, 0x1p-32f},
        {kBfloat16, 1 + 0x1p-15f, 1 + 0x1p-15f},
        {kBfloat16, 0x1p-125f, 0x1p-125f},
        {kBfloat16, 3.4e38f, 0x1.fefep127f},
        {kBfloat16, -kInf, -0x1.fefep127f},
        {kBfloat16, kNaN, kNaN},
    };
    for (const MasterCase& one : kCases) {
      const Variable split = SplitMasters(one.type, {one.master}, Form::kShortRemainder);
      const float found =
          JoinedShort(one.type, split.weight[0], split.short_remainder[0]);
      EXPECT(SameNumber(found, one.expected), "%s: %.9g became %.9g, expected %.9g",
             device_.Name(), one.master, found, one.expected);
    }
  }

  // The mean over random numbers is the master, within five standard errors, also half-way
  // between two weights and beside that.
  void TestShortMastersAreUnbiased() {
    constexpr int kTrials = 1000;
    std::mt19937 random(21);
    for (DataType type : kTypes) {
      const double unit = type == DataType::kHalf ? 0x1p-18 : 0x1p-15;
      std::vector<float> masters;
      for (double place : {0.25, 126.5, 127.5, 128.0, 128.75, 129.5, 383.5, 384.0}) {
        masters.push_back(static_cast<float>(1 + place * unit));
        masters.push_back(static_cast<float>(-1 - place * unit));
      }
      std::vector<double> sums(masters.size());
      for (int trial = 0; trial < kTrials; ++trial) {
        const Variable split =
            SplitMasters(type, masters, Form::kShortRemainder, WithNoise({}, random));
        for (std::size_t i = 0; i < masters.size(); ++i) {
          const double error =
              double{JoinedShort(type, split.weight[i], split.short_remainder[i])} -
              double{masters[i]};
          EXPECT(std::abs(error) < 2 * unit, "%s: %.9g is off by %.9g", device_.Name(),
                 masters[i], error);
          sums[i] += error / unit;
        }
      }
      // An error of less than two units has a deviation of one at most.
      for (std::size_t i = 0; i < masters.size(); ++i) {
        EXPECT(std::abs(sums[i] / kTrials) < 5 / std::sqrt(1.0 * kTrials),
               "%s: %.9g is off by %.9g units in the mean", device_.Name(), masters[i],
               sums[i] / kTrials);
      }
    }
  }

  // Encodes numbers as the first slot: of kMomentum, which is -gradient for the learning
  // rate 1, or the squares as that of kRmsprop.
  Variable EncodeSlot(SlotCode code, int bits, const std::vector<float>& numbers,
                      const UpdateHyperparameters& noise = {}) {
    std::mt19937 random(15);
    const auto size = static_cast<std::int64_t>(numbers.size());
    Variables variables = {Variable(Form::kMaster, DataType::kHalf, size, random)};
    Variable& variable = variables[0];
    variable.is_coded[0] = true;
    variable.bits = bits;
    const bool is_signed = code == SlotCode::kSigned;
    for (std::int64_t i = 0; i < size; ++i) {
      variable.gradient[i] = is_signed ? -numbers[i] : numbers[i];
    }
    UpdateHyperparameters u = noise;
    u.learning_rate = is_signed ? 1 : 0;
    u.one_minus_beta_2 = 1;
    ExpectOk(Run(is_signed ? UpdateRule::kMomentum : UpdateRule::kRmsprop, u, variables));
    return variable;
  }

  static float ElementOf(SlotCode code, const Variable& variable, std::int64_t i) {
    return Decoded(code, variable.bits, variable.CodeOf(0, i),
                   variable.exponents[0][i / kSlotGroup]);
  }

  // Numbers that have a code are not rounded: every code, with every exponent for which
  // it is a normal number, comes back from a step that changes nothing.
  void TestEveryCodeStays(SlotCode code, int bits) {
    std::mt19937 random(16);
    const bool is_signed = code == SlotCode::kSigned;
    const int codes = 1 << bits, largest = (is_signed ? codes / 2 : codes) - 1;
    constexpr std::int64_t kExponents = 253 - 40 + 1;
    constexpr std::int64_t kGroupsOfEach = 256 / (kSlotGroup - 1) + 1;
    Variables variables = {Variable(Form::kMaster, DataType::kHalf,
                                    kExponents * kGroupsOfEach * kSlotGroup, random)};
    Variable& variable = variables[0];
    variable.is_coded[0] = true;
    variable.bits = bits;
    int next = 0;
    for (std::int64_t i = 0; i < variable.size(); ++i) {
      const std::int64_t group = i / kSlotGroup;
      variable.exponents[0][group] =
          static_cast<std::uint8_t>(40 + group / kGroupsOfEach);
      // The largest code keeps the exponent of the group. -0 becomes 0.
      const bool is_first = i % kSlotGroup == 0;
      if (!is_first && is_signed && next == codes / 2) ++next;
      variable.SetCode(0, i, is_first ? largest : next);
      if (!is_first) next = (next + 1) % codes;
    }
    UpdateHyperparameters u = WithNoise({}, random);
    u.momentum = u.beta_2 = 1;
    const Variable before = variable;
    ExpectOk(Run(is_signed ? UpdateRule::kMomentum : UpdateRule::kRmsprop, u,
                 variables));
    for (std::int64_t i = 0; i < before.size(); ++i) {
      EXPECT(variable.CodeOf(0, i) == before.CodeOf(0, i), "%s: code %02x became %02x",
             device_.Name(), before.CodeOf(0, i), variable.CodeOf(0, i));
      EXPECT(variable.exponents[0][i / kSlotGroup] ==
                 before.exponents[0][i / kSlotGroup],
             "%s: exponent", device_.Name());
    }
  }

  struct EncodeCase {
    std::vector<float> numbers, expected;
  };

  void TestEncodeByHand() {
    const EncodeCase kCases[] = {
        {{0, -0.0f}, {0, 0}},
        {{1, -1.125f, 0.5f}, {1, -1.125f, 0.5f}},
        {{1, -0x1p-14f, 0x7p-17f, -0x1p-17f}, {1, -0x1p-14f, 0x7p-17f, -0x1p-17f}},
        {{1.875f, -1.75f}, {1.875f, -1.75f}},
        {{2, -1.875f, 0.9375f}, {2, -1.875f, 0.9375f}},
        {{kInf, -kInf, 1}, {0x1.ep126f, -0x1.ep126f, 0}},
        {{kNaN, -1}, {0x1.ep126f, 0}},
        {{3e38f, -2e38f}, {0x1.ep126f, -0x1.ep126f}},
        {{0x1p-126f, -0x1.4p-126f}, {0x1p-126f, -0x1.4p-126f}},
        {{0x1p-127f, -0x1p-149f}, {0, 0}},  // nothing but subnormal numbers
    };
    for (const EncodeCase& one : kCases) {
      const Variable encoded = EncodeSlot(SlotCode::kSigned, 8, one.numbers);
      for (std::size_t i = 0; i < one.numbers.size(); ++i) {
        const float found = ElementOf(SlotCode::kSigned, encoded, i);
        // Beside inf and NaN, 1 is less than a code: it is 0, or the smallest code.
        const bool is_lost = one.expected[i] == 0 && std::abs(found) <= 0x1p110f &&
                             encoded.exponents[0][0] == 253;
        EXPECT(found == one.expected[i] || is_lost, "%s: %.9g became %.9g, expected %.9g",
               device_.Name(), one.numbers[i], found, one.expected[i]);
      }
    }
  }

  void TestPairsByHand() {
    const std::vector<float> numbers = {1,     0.75f,  0.5f,    0.375f, 0.25f,
                                        0.125f, 0, -0.0f, -0.125f, -1.5f};
    const int codes[] = {6, 5, 4, 3, 2, 1, 0, 0, 9, 15};
    std::vector<float> group(20);  // an element in the high bits, and none behind it
    std::copy(numbers.begin(), numbers.end(), group.begin());
    group[16] = -0.5f;
    const Variable encoded = EncodeSlot(SlotCode::kSigned, 4, group);
    for (int i = 0; i < 16; ++i) {
      const int low = i < 10 ? codes[i] : 0, high = i == 0 ? 12 : 0;
      EXPECT(encoded.pairs[0][i] == (low | high << 4), "%s: pair %d is %02x",
             device_.Name(), i, encoded.pairs[0][i]);
    }
    EXPECT(encoded.exponents[0][0] == 127, "%s", device_.Name());
    // Roots of second moments. There is no 0, but in a group of zeros.
    const EncodeCase kCases[] = {
        {{1, 0.5f, 0.0625f, 0x1p-30f, 0}, {1, 0.25f, 0x1p-8f, 0x1p-8f, 0x1p-8f}},
        {{0, 0, 0}, {0, 0, 0}},
        {{kInf, kNaN, 0}, {0x1p126f, 0x1p126f, 0x1p118f}},
    };
    for (const EncodeCase& one : kCases) {
      const Variable found = EncodeSlot(SlotCode::kUnsigned, 4, one.numbers);
      for (std::size_t i = 0; i < one.numbers.size(); ++i) {
        EXPECT(ElementOf(SlotCode::kUnsigned, found, i) == one.expected[i],
               "%s: the square of %.9g became %.9g", device_.Name(), one.numbers[i],
               ElementOf(SlotCode::kUnsigned, found, i));
      }
    }
  }

  // Roots of second moments from 1 down to 2^-63, beside each other.
  void TestSecondMomentsNeverVanish(int bits) {
    std::mt19937 random(17);
    std::vector<float> roots;
    for (int i = 0; i < 64; ++i) roots.push_back(std::ldexp(1.0f, -i));
    std::shuffle(roots.begin(), roots.end(), random);
    for (int trial = 0; trial < 100; ++trial) {
      const Variable encoded =
          EncodeSlot(SlotCode::kUnsigned, bits, roots, WithNoise({}, random));
      for (int i = 0; i < 64; ++i) {
        EXPECT(ElementOf(SlotCode::kUnsigned, encoded, i) > 0, "%s: %.9g became 0",
               device_.Name(), roots[i] * roots[i]);
      }
    }
  }

  // The mean over random numbers is the number, within five standard errors. A number at
  // the distance p of the gap between two codes has a standard deviation of
  // sqrt(p (1 - p)) gaps.
  void TestCodesAreUnbiased(SlotCode code, int bits) {
    constexpr int kTrials = 400;
    std::mt19937 random(18);
    std::uniform_real_distribution<float> uniform(-1.3f, 1.3f);
    // A 1 in each group. Unsigned codes are not unbiased below their smallest number, of
    // a group of up to 2.
    const float least = code == SlotCode::kSigned ? 0 : bits == 8 ? 0x1p-32f : 0x1p-6f;
    std::vector<float> numbers;
    while (numbers.size() < 96) {
      const float number = std::ldexp(uniform(random), -int(random() % 9));
      const bool is_possible = number * number > least;
      const bool is_first = numbers.size() % kSlotGroup == 0;
      if (is_first || is_possible) numbers.push_back(is_first ? 1 : number);
    }
    std::vector<double> sums(numbers.size()), squares(numbers.size());
    for (int trial = 0; trial < kTrials; ++trial) {
      const Variable encoded = EncodeSlot(code, bits, numbers, WithNoise({}, random));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double found = ElementOf(code, encoded, i);
        sums[i] += found;
        squares[i] += found * found;
      }
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float root = numbers[i];
      const double number = code == SlotCode::kSigned ? root : root * root;
      const double mean = sums[i] / kTrials;
      const double variance = squares[i] / kTrials - mean * mean;
      // Where a code is rare, all trials may have missed it: a chance of one in a
      // million has p kTrials < 14, and p gaps are at most 14 / 400 of the gap: 1/8 of
      // the number, or in 4 bits a half, or 1/4 next to a 1.
      const double gap =
          bits == 8 ? std::abs(number) / 8 : std::max(std::abs(number) / 2, 0.25);
      const double missed = 14.0 / kTrials * gap;
      const double most = 5 * std::sqrt(std::max(variance, 0.0) / kTrials) + missed;
      EXPECT(std::abs(mean - number) <= most, "%s: %.9g has the mean %.9g, within %.9g",
             device_.Name(), number, mean, most);
    }
  }

  void TestErrors() {
    std::mt19937 random(19);
    const auto fails = [&](UpdateRule rule, const auto& change) {
      Variable variable(Form::kRemainder, DataType::kHalf, 33, random);
      variable.is_coded[0] = true;
      Parameter parameter = variable.AsParameter(rule);
      change(parameter, variable);
      One<UpdateHyperparameters> hyperparameters({});
      Update update;
      update.count = 1;
      update.parameters = &parameter;
      update.rule = rule;
      update.hyperparameters = hyperparameters.data();
      return device_.Update(update).code == StatusCode::kInvalidArgument;
    };
    const auto nothing = [](Parameter&, Variable&) {};
    const auto with_master = [](Parameter& parameter, Variable& variable) {
      parameter.pair.master = variable.master.data();
    };
    const auto with_two_remainders = [](Parameter& parameter, Variable& variable) {
      parameter.pair.short_remainder = variable.short_remainder.data();
    };
    const auto without_weight = [](Parameter& parameter, Variable&) {
      parameter.pair.weight = nullptr;
    };
    const auto with_uniforms = [](Parameter& parameter, Variable& variable) {
      parameter.uniforms = variable.master.data();
    };
    const auto without_exponents = [](Parameter& parameter, Variable&) {
      parameter.slots[0].exponents = nullptr;
    };
    const auto with_pairs = [](Parameter& parameter, Variable& variable) {
      parameter.slots[0].pairs = variable.pairs[0].data();
    };
    EXPECT(fails(UpdateRule::kMomentum, with_pairs), "%s", device_.Name());
    EXPECT(!fails(UpdateRule::kMomentum, nothing), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kMomentum, with_master), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kMomentum, with_two_remainders), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kMomentum, without_weight), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kMomentum, with_uniforms), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kMomentum, without_exponents), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kAmsgrad, nothing), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kFtrl, nothing), "%s", device_.Name());
    EXPECT(fails(UpdateRule::kCenteredRmsprop, nothing), "%s", device_.Name());
  }

  void ExpectOk(const Status& status) {
    EXPECT(status.ok(), "%s: %s", device_.Name(), status.message);
  }

  Device device_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_COMPRESSED_SUITE_H_
