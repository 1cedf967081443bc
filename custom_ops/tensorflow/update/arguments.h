// The arguments of the ops of the update step, and their checks, which the kernels of
// every device and those for XLA share.

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
    "ftrl",
    "rmsprop",
    "rmsprop_momentum",
    "centered_rmsprop",
    "centered_rmsprop_momentum",
};

// The dtype and shape of an input, or of the variable whose handle it is.
struct TensorSpec {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
};

absl::Status CheckScalar(const char* name, const tensorflow::TensorShape& shape);

// Checks that KerasMp>UnscaleGradients has one result for each gradient.
absl::Status CheckResultCount(int gradients, int results);

// Checks that KerasMp>CastMasters has no uniforms, or one tensor of them for each weight.
absl::Status CheckUniformCount(tensorflow::OpKernelConstruction* ctx);

// Checks dtypes and shapes of KerasMp>SyncMastersFromWeights and KerasMp>CastMasters,
// whose inputs are `count` masters, their weights, and uniforms.
absl::Status CheckPairs(const std::vector<TensorSpec>& inputs, int count);

// The error of ops that got a variable twice.
absl::Status DuplicateVariable();

// The positions of the inputs of KerasMp>UpdateVariables: finite, hyperparameters,
// gradients, masters, the first slots of all masters, the second slots and so on, as many
// as the rule has, weights, uniforms.
class UpdateArguments {
 public:
  static constexpr int kFinite = 0, kHyperparameters = 1, kLists = 2;
  // The length of `hyperparameters`, which have the order of UpdateHyperparameters.
  static constexpr int kHyperparameterCount =
      sizeof(UpdateHyperparameters) / sizeof(float);
  // Whether weight_of has distinct indices of the `count` masters.
  static bool AreOfMasters(const std::vector<std::int64_t>& weight_of, int count);

  UpdateArguments() = default;
  // `weight_of[k]`: the index of the master of the k-th weight, checked by AreOfMasters;
  // the other masters are FP32 weights themselves. `apply_weight_decay`: one for each
  // master.
  UpdateArguments(UpdateRule rule, bool is_stochastic,
                  std::vector<std::int64_t> weight_of,
                  std::vector<std::int64_t> apply_weight_decay);

  // Reads the attributes of the op, and checks that they match.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx);

  // Checks dtypes and shapes of the inputs.
  absl::Status CheckInputs(const std::vector<TensorSpec>& inputs) const;

  UpdateRule rule() const { return rule_; }
  bool is_stochastic() const { return is_stochastic_; }
  const std::vector<std::int64_t>& weight_of() const { return weight_of_; }
  const std::vector<std::int64_t>& apply_weight_decay() const {
    return apply_weight_decay_;
  }
  int count() const { return static_cast<int>(apply_weight_decay_.size()); }
  int slots() const { return SlotsOf(rule_); }  // of each variable

  // The input that holds the gradient, the master and so on of the i-th variable, or -1.
  int gradient(int i) const { return kLists + i; }
  int master(int i) const { return kLists + count() + i; }
  int slot(int k, int i) const { return kLists + (2 + k) * count() + i; }
  int weight(int i) const { return weights_[i]; }
  int uniform(int i) const { return uniforms_[i]; }
  // The inputs [first_variable, end_of_variables) are the variables: masters, slots and
  // weights. They are written to.
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
  std::vector<std::int64_t> weight_of_, apply_weight_decay_;
  std::vector<int> weights_, uniforms_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_
