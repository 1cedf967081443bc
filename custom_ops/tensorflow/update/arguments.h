// What the kernels of every device check of the arguments of the update step.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_

#include <cstdint>
#include <vector>

#include "keras_mp/update.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

// The names of the rules, in the order of UpdateRule.
inline constexpr const char* kRuleNames[kUpdateRules] = {
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "amsgrad",
    "nadam",
    "adamax",
    "lion",
    "adagrad",
    "adadelta",
    "rmsprop",
    "rmsprop_momentum",
    "centered_rmsprop",
    "centered_rmsprop_momentum",
};

// KerasMp>UnscaleGradients has as many results as gradients.
absl::Status CheckResultCount(tensorflow::OpKernelConstruction* ctx);

// KerasMp>CastMasters has no uniforms, or one for each weight.
absl::Status CheckUniformCount(tensorflow::OpKernelConstruction* ctx);

// Where the inputs of KerasMp>UpdateVariables are: finite, numbers, gradients, masters,
// the first slots and as many more as the rule has, weights, uniforms.
class UpdateArguments {
 public:
  static constexpr int kFinite = 0, kNumbers = 1, kLists = 2;
  // The length of `numbers`, which lie as in UpdateNumbers.
  static constexpr int kNumberCount = sizeof(UpdateNumbers) / sizeof(float);
  static absl::Status CheckNumbers(const tensorflow::TensorShape& shape);
  // Whether each weight has a master of its own, of `count`.
  static bool AreOfMasters(const std::vector<std::int64_t>& weight_of, int count);

  UpdateArguments() = default;
  // `weight_of[k]`: the master of the k-th weight, which AreOfMasters; the other masters
  // are weights themselves. `decays`: one for each master.
  UpdateArguments(UpdateRule rule, bool is_stochastic,
                  std::vector<std::int64_t> weight_of, std::vector<std::int64_t> decays);

  // From the attributes of the op, which must match.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx);

  UpdateRule rule() const { return rule_; }
  bool is_stochastic() const { return is_stochastic_; }
  const std::vector<std::int64_t>& weight_of() const { return weight_of_; }
  const std::vector<std::int64_t>& decays() const { return decays_; }
  int count() const { return static_cast<int>(decays_.size()); }
  int slots() const { return SlotsOf(rule_); }  // of each variable

  // The input that is something of the i-th variable, or -1.
  int gradient(int i) const { return kLists + i; }
  int master(int i) const { return kLists + count() + i; }
  int slot(int k, int i) const { return kLists + (2 + k) * count() + i; }
  int weight(int i) const { return weights_[i]; }
  int uniform(int i) const { return uniforms_[i]; }
  // The inputs that are written to: masters, slots and weights.
  int first_variable() const { return kLists + count(); }
  int end_of_variables() const { return first_weight() + weight_count(); }
  int input_count() const {
    return end_of_variables() + (is_stochastic_ ? weight_count() : 0);
  }

 private:
  int weight_count() const { return static_cast<int>(weight_of_.size()); }
  int first_weight() const { return kLists + (2 + slots()) * count(); }

  UpdateRule rule_ = UpdateRule::kSgd;
  bool is_stochastic_ = false;
  std::vector<std::int64_t> weight_of_, decays_;
  std::vector<int> weights_, uniforms_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_
