// Data for the tests of the update step: arrays with guards, and variables with random
// values. `Device` is that of common/update_suite.h.

#ifndef KERAS_MP_TESTS_COMMON_UPDATE_DATA_H_
#define KERAS_MP_TESTS_COMMON_UPDATE_DATA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/update.h"

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

// The rules whose steps need no norms: those before kLamb and kAdafactor.
constexpr int kElementwiseRules = kUpdateRules - 2;
static_assert(NeedsNorms(static_cast<UpdateRule>(kElementwiseRules)));

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
  result.l1 = 0.3f;
  result.l2 = 0.2f;
  result.l2_shrinkage = 0.05f;
  result.epsilon_2 = 0.001f;
  result.threshold = 1;
  if (has_options) {
    result.clip_value = 0.5f;
    result.clip_factor = 0.7f;
    result.weight_decay = 0.01f;
  }
  return result;
}

template <class Device>
struct UpdateData {
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
          uniforms(size, random() % 2 * random() % 4),
          powers(size, random() % 2 * random() % 4) {
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
        powers[i] = std::abs(number(gradient_size * normal(random), kSmall));
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
    Array<float> powers;
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
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_COMMON_UPDATE_DATA_H_
