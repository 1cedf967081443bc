// The arguments of the ops of the update step, and their checks, which the kernels of
// every device and those for XLA share.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_

#include <cstdint>
#include <vector>

#include "common/locked_variables.h"
#include "keras_mp/update.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

// The names of the rules, in the order of UpdateRule.
inline constexpr const char* kRuleNames[kUpdateRules] = {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) name,
#include "keras_mp/update_rules.def"
};

// The dtype and shape of an input, or of the variable whose handle it is.
struct TensorSpec {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
};

// The matrices of a tensor.
template <class Dimensions>
Matrices MatricesOf(const Dimensions& sizes) {
  Matrices matrices;
  const auto dimensions = static_cast<std::int64_t>(sizes.size());
  if (dimensions < 2) return matrices;
  matrices.count = 1;
  for (std::int64_t i = 0; i < dimensions - 2; ++i) matrices.count *= sizes[i];
  matrices.rows = sizes[dimensions - 2];
  matrices.columns = sizes[dimensions - 1];
  return matrices;
}

absl::Status CheckScalar(const char* name, const tensorflow::TensorShape& shape);

// Checks that KerasMp>UnscaleGradients has one result for each gradient.
absl::Status CheckResultCount(int gradients, int results);

// Checks that KerasMp>CastMasters has no uniforms, or one tensor of them for each weight.
absl::Status CheckUniformCount(tensorflow::OpKernelConstruction* ctx);

// Checks dtypes and shapes of KerasMp>SyncMastersFromWeights and KerasMp>CastMasters,
// whose inputs are `count` masters, their weights, and uniforms.
absl::Status CheckPairs(const std::vector<TensorSpec>& inputs, int count);

// The positions of the inputs of KerasMp>UpdateVariables: finite, hyperparameters,
// gradients, masters, the first slots of all masters, the second slots and so on, as many
// as the rule has, weights, exponents, uniforms, powers. The dtype of a master tells how it
// is held: FP32; int16 or int8, the remainder of its weight; or 16 bits, a weight without a
// master.
// That of a slot: FP32, or uint8, the codes or pairs; or any, where the rule has no use for
// it.
class UpdateArguments {
 public:
  static constexpr int kFinite = 0, kHyperparameters = 1, kLists = 2;
  // The length of `hyperparameters`, which have the order of UpdateHyperparameters.
  static constexpr int kHyperparameterCount =
      sizeof(UpdateHyperparameters) / sizeof(float);
  // Whether `indices` are distinct, from 0 to before `count`.
  static bool AreDistinct(const std::vector<std::int64_t>& indices, int count);
  static bool IsCodeSize(std::int64_t bits) { return bits == 8 || bits == 4; }

  UpdateArguments() = default;
  // `weight_of[k]`: the index of the master of the k-th weight; the other masters are
  // weights themselves. `exponent_of[k]`: the index of the slot of the k-th exponents.
  // `power_of[k]`: that of the gradient of the k-th powers. All are checked by AreDistinct.
  // `code_bits`: of each code, IsCodeSize. `apply_weight_decay`: one for each master.
  UpdateArguments(UpdateRule rule, bool is_stochastic,
                  std::vector<std::int64_t> weight_of,
                  std::vector<std::int64_t> exponent_of, std::int64_t code_bits,
                  std::vector<std::int64_t> power_of,
                  std::vector<std::int64_t> apply_weight_decay);

  // Reads the attributes of the op, and checks that they match.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx);

  // Checks dtypes and shapes of the inputs.
  absl::Status CheckInputs(const std::vector<TensorSpec>& inputs) const;

  UpdateRule rule() const { return rule_; }
  bool is_stochastic() const { return is_stochastic_; }
  const std::vector<std::int64_t>& weight_of() const { return weight_of_; }
  const std::vector<std::int64_t>& exponent_of() const { return exponent_of_; }
  std::int64_t code_bits() const { return code_bits_; }
  const std::vector<std::int64_t>& power_of() const { return power_of_; }
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
  int exponents(int k, int i) const { return exponents_[k * count() + i]; }
  int uniform(int i) const { return uniforms_[i]; }
  int powers(int i) const { return powers_[i]; }
  // The inputs [first_variable, end_of_variables) are the variables: masters, slots,
  // weights and exponents. They are written to.
  int first_variable() const { return kLists + count(); }
  int end_of_variables() const {
    return first_weight() + weight_count() + static_cast<int>(exponent_of_.size());
  }
  int input_count() const {
    return first_powers() + static_cast<int>(power_of_.size());
  }

 private:
  int weight_count() const { return static_cast<int>(weight_of_.size()); }
  int first_weight() const { return kLists + (2 + slots()) * count(); }
  int first_powers() const {
    return end_of_variables() + (is_stochastic_ ? weight_count() : 0);
  }

  absl::Status CheckMaster(const std::vector<TensorSpec>& inputs, int i) const;
  absl::Status CheckSlot(const std::vector<TensorSpec>& inputs, int k, int i) const;
  absl::Status CheckCodes(const std::vector<TensorSpec>& inputs, int k, int i) const;

  UpdateRule rule_ = UpdateRule::kSgd;
  bool is_stochastic_ = false;
  std::int64_t code_bits_ = 8;
  std::vector<std::int64_t> weight_of_, exponent_of_, power_of_, apply_weight_decay_;
  std::vector<int> weights_, exponents_, uniforms_, powers_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_ARGUMENTS_H_
