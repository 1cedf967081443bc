// The class of KerasMp>UpdateVariables.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_UPDATE_VARIABLES_OP_H_
#define KERAS_MP_TENSORFLOW_UPDATE_UPDATE_VARIABLES_OP_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/op_hooks.h"
#include "keras_mp/update_cpu.h"
#include "keras_mp/update_cuda.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

// The names of the rules, in the order of UpdateRule.
inline constexpr const char* kRuleNames[kUpdateRules] = {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) name,
#include "keras_mp/update_rules.def"
};

// Inputs: finite, hyperparameters, gradients, masters, the first slots of all masters, the
// second slots and so on, as many as the rule has, weights, exponents, uniforms, powers.
// The dtype of a master tells how it is held: FP32; int16 or int8, the remainder of its
// weight; or 16 bits, a weight without a master. That of a slot: FP32, or uint8, the codes
// or pairs; or any, where the rule has no use for it.
class UpdateVariablesOp : public OpHooks {
 public:
  static constexpr char kName[] = "KerasMp>UpdateVariables";
  static constexpr char kCall[] = "keras_mp.update_variables";
  static constexpr int kMinInputs = 2;

  static std::vector<const char*> HostInputs() {
    return {"masters", "slots", "weights", "exponents"};
  }

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit.OfCall("rule", &rule_);
    visit.OfCall("is_stochastic", &is_stochastic_);
    visit("weight_of", &weight_of_);
    visit("exponent_of", &exponent_of_);
    visit("code_bits", &code_bits_);
    visit("power_of", &power_of_);
    visit("apply_weight_decay", &apply_weight_decay_);
  }

  // Reads the rule, and checks that the counts of the op match.
  absl::Status ReadOp(tensorflow::OpKernelConstruction* ctx);

  absl::Status Complete();

  // Masters, slots, weights and exponents.
  std::pair<int, int> Variables() const { return {master(0), end_of_variables()}; }

  absl::StatusOr<Views> Outputs(const Views& inputs) const;

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views&) const {
    std::vector<Parameter> parameters;
    std::vector<Matrices> matrices;
    const Update update = UpdateOf(inputs, &parameters, &matrices);
    if constexpr (Device::kIsCpu) {
      return UpdateCpu(update, device.threads());
    } else {
      return UpdateCuda(update, device.stream());
    }
  }

 private:
  static constexpr int kFinite = 0, kHyperparameters = 1, kLists = 2;
  static constexpr int kHyperparameterCount =
      sizeof(UpdateHyperparameters) / sizeof(float);

  UpdateRule rule() const { return static_cast<UpdateRule>(rule_); }
  int count() const { return static_cast<int>(apply_weight_decay_.size()); }
  int slots() const { return SlotsOf(rule()); }  // of each variable
  int weight_count() const { return static_cast<int>(weight_of_.size()); }
  int exponent_count() const { return static_cast<int>(exponent_of_.size()); }
  int uniform_count() const { return is_stochastic_ ? weight_count() : 0; }
  int power_count() const { return static_cast<int>(power_of_.size()); }

  // The input that holds the gradient, the master and so on of the i-th variable, or -1.
  int gradient(int i) const { return kLists + i; }
  int master(int i) const { return kLists + count() + i; }
  int slot(int k, int i) const { return kLists + (2 + k) * count() + i; }
  int weight(int i) const { return weights_[i]; }
  int exponents(int k, int i) const { return exponents_[k * count() + i]; }
  int uniform(int i) const { return uniforms_[i]; }
  int powers(int i) const { return powers_[i]; }

  int first_weight() const { return slot(slots(), 0); }
  int first_exponents() const { return first_weight() + weight_count(); }
  int end_of_variables() const { return first_exponents() + exponent_count(); }
  int first_powers() const { return end_of_variables() + uniform_count(); }
  int input_count() const { return first_powers() + power_count(); }

  absl::Status CheckMaster(const Views& inputs, int i) const;
  absl::Status CheckSlot(const Views& inputs, int k, int i) const;
  absl::Status CheckCodes(const Views& inputs, int k, int i) const;

  // The arguments of the kernel. `parameters` and `matrices` hold what they point to.
  Update UpdateOf(const Views& inputs, std::vector<Parameter>* parameters,
                  std::vector<Matrices>* matrices) const;
  Parameter ParameterOf(const Views& inputs, int i) const;

  std::int64_t rule_ = 0;  // an UpdateRule
  bool is_stochastic_ = false;
  // weight_of_[k]: the index of the master of the k-th weight; the other masters are
  // weights themselves. exponent_of_[k]: that of the slot of the k-th exponents.
  // power_of_[k]: that of the gradient of the k-th powers.
  std::vector<std::int64_t> weight_of_, exponent_of_, power_of_;
  std::int64_t code_bits_ = 8;  // of each code
  std::vector<bool> apply_weight_decay_;
  std::vector<int> weights_, exponents_, uniforms_, powers_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_UPDATE_VARIABLES_OP_H_
