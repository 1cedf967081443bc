#include "update/update_variables_op.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "update/tensors.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;

// Whether `indices` are distinct, from 0 to before `count`.
bool AreDistinct(const std::vector<std::int64_t>& indices, int count) {
  std::vector<bool> taken(count);
  for (std::int64_t i : indices) {
    if (i < 0 || i >= count || taken[i]) return false;
    taken[i] = true;
  }
  return true;
}

// The matrices of a tensor.
Matrices MatricesOf(const TensorShape& shape) {
  Matrices matrices;
  const int dims = shape.dims();
  if (dims < 2) return matrices;
  matrices.count = 1;
  for (int i = 0; i < dims - 2; ++i) matrices.count *= shape.dim_size(i);
  matrices.rows = shape.dim_size(dims - 2);
  matrices.columns = shape.dim_size(dims - 1);
  return matrices;
}

// Whether a slot has the shape of its master, or for means over a dimension all of its
// sizes but that. Without building this shape: beside a size of 0 the others may be so
// large that their product does not fit into 64 bits.
bool HasShapeOfSlot(UpdateRule rule, int slot, const TensorShape& master,
                    const TensorShape& shape) {
  if (rule != UpdateRule::kAdafactor || slot == 0) return shape == master;
  auto sizes = master.dim_sizes();
  sizes.erase(sizes.end() - slot);
  return shape.dim_sizes() == sizes;
}

// Whether the rule has such a slot of a variable: kAdafactor has means of matrices alone.
bool UsesSlot(UpdateRule rule, int slot, const TensorShape& master) {
  return rule != UpdateRule::kAdafactor || slot == 0 || master.dims() >= 2;
}

}  // namespace

absl::Status UpdateVariablesOp::ReadOp(tensorflow::OpKernelConstruction* ctx) {
  int masters, slot_count, weights, exponents, uniforms, powers;
  std::string rule;
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("count", &masters));
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_count", &slot_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weight_count", &weights));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exponent_count", &exponents));
  TF_RETURN_IF_ERROR(ctx->GetAttr("uniform_count", &uniforms));
  TF_RETURN_IF_ERROR(ctx->GetAttr("power_count", &powers));
  TF_RETURN_IF_ERROR(ctx->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &types));
  rule_ = std::find(std::begin(kRuleNames), std::end(kRuleNames), rule) -
          std::begin(kRuleNames);
  is_stochastic_ = uniforms > 0;
  if (masters == count() && types.size() == apply_weight_decay_.size() &&
      slot_count == slots() * count() && weights == weight_count() &&
      exponents == exponent_count() && uniforms == uniform_count() &&
      powers == power_count()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the lists must match. Received: ", masters, " masters, ", types.size(),
      " gradients, ", count(), " of apply_weight_decay, ", slot_count, " slots for ",
      rule, ", ", weights, " weights and ", weight_count(), " of weight_of, ", exponents,
      " exponents and ", exponent_count(), " of exponent_of, ", uniforms, " uniforms, ",
      powers, " powers and ", power_count(), " of power_of"));
}

absl::Status UpdateVariablesOp::Complete() {
  if (rule_ < 0 || rule_ >= kUpdateRules) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a rule must be from 0 to ", kUpdateRules - 1, ". Received: rule=", rule_));
  }
  if (!power_of_.empty() && !TakesPowers(rule())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rule takes no powers of gradients. Received: ", power_count(),
                     " for ", kRuleNames[rule_]));
  }
  if (!AreDistinct(weight_of_, count()) ||
      !AreDistinct(exponent_of_, slots() * count()) ||
      !AreDistinct(power_of_, count()) || (code_bits_ != 8 && code_bits_ != 4)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "each weight must have a master of its own, all exponents a slot of their own, "
        "and powers a gradient; codes have 8 or 4 bits. Received: ",
        count(), " masters, weight_of=[", absl::StrJoin(weight_of_, ", "),
        "], exponent_of=[", absl::StrJoin(exponent_of_, ", "), "], power_of=[",
        absl::StrJoin(power_of_, ", "), "], code_bits=", code_bits_));
  }
  weights_.assign(count(), -1);
  uniforms_.assign(count(), -1);
  for (int k = 0; k < weight_count(); ++k) {
    weights_[weight_of_[k]] = first_weight() + k;
    if (is_stochastic_) uniforms_[weight_of_[k]] = end_of_variables() + k;
  }
  exponents_.assign(slots() * count(), -1);
  for (int k = 0; k < exponent_count(); ++k) {
    exponents_[exponent_of_[k]] = first_exponents() + k;
  }
  powers_.assign(count(), -1);
  for (int k = 0; k < power_count(); ++k) powers_[power_of_[k]] = first_powers() + k;
  return absl::OkStatus();
}

absl::StatusOr<Views> UpdateVariablesOp::Outputs(const Views& inputs) const {
  if (static_cast<int>(inputs.size()) != input_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there must be ", input_count(), " inputs for ", count(),
                     " masters. Received: ", inputs.size()));
  }
  TF_RETURN_IF_ERROR(
      CheckTensor("finite", inputs[kFinite], tensorflow::DT_BOOL, TensorShape()));
  const TensorView& numbers = inputs[kHyperparameters];
  if (numbers.dtype != tensorflow::DT_FLOAT ||
      numbers.shape != TensorShape({kHyperparameterCount})) {
    return absl::InvalidArgumentError(
        absl::StrCat("there must be ", kHyperparameterCount,
                     " hyperparameters. Received: ", numbers.DebugString()));
  }
  for (int i = 0; i < count(); ++i) {
    const TensorView &of_master = inputs[master(i)], &of_gradient = inputs[gradient(i)];
    TF_RETURN_IF_ERROR(CheckMaster(inputs, i));
    TF_RETURN_IF_ERROR(CheckGradientType(i, of_gradient));
    TF_RETURN_IF_ERROR(CheckShape("gradient", i, of_gradient, of_master));
    for (int k = 0; k < slots(); ++k) TF_RETURN_IF_ERROR(CheckSlot(inputs, k, i));
    if (weight(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckWeight(i, inputs[weight(i)], of_master));
    }
    if (uniform(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckFp32("uniform", i, inputs[uniform(i)], of_master));
    }
    if (powers(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckFp32("powers", i, inputs[powers(i)], of_master));
    }
  }
  return Views();
}

absl::Status UpdateVariablesOp::CheckMaster(const Views& inputs, int i) const {
  const tensorflow::DataType dtype = inputs[master(i)].dtype;
  const bool has_weight = weight(i) >= 0;
  const bool is_remainder =
      dtype == tensorflow::DT_INT16 || dtype == tensorflow::DT_INT8;
  const bool fits = dtype == tensorflow::DT_FLOAT ||
                    (!is_stochastic_ && is_remainder && has_weight) ||
                    (!is_stochastic_ && Has16Bits(dtype) && !has_weight);
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a master must be float32, the int16 or int8 remainder of a weight, or a 16-bit "
      "variable without a weight; uniforms are for float32 masters alone. Received: master ",
      i, ": ", DataTypeString(dtype), has_weight ? " with" : " without", " a weight, ",
      is_stochastic_ ? "with" : "without", " uniforms"));
}

absl::Status UpdateVariablesOp::CheckSlot(const Views& inputs, int k, int i) const {
  const TensorView &of_slot = inputs[slot(k, i)], &of_master = inputs[master(i)];
  if (exponents(k, i) >= 0) return CheckCodes(inputs, k, i);
  if (!UsesSlot(rule(), k, of_master.shape)) return absl::OkStatus();
  if (!HasShapeOfSlot(rule(), k, of_master.shape, of_slot.shape)) {
    return DoesNotFit("slot", i, of_slot, of_master);
  }
  return of_slot.dtype == tensorflow::DT_FLOAT ? absl::OkStatus()
                                               : CheckCodes(inputs, k, i);
}

absl::Status UpdateVariablesOp::CheckCodes(const Views& inputs, int k, int i) const {
  const TensorView &of_slot = inputs[slot(k, i)], &of_master = inputs[master(i)];
  const std::int64_t size = of_master.shape.num_elements();
  const TensorShape of_codes =
      code_bits_ == 8 ? of_master.shape : TensorShape({SlotPairsOf(size)});
  if (of_slot.shape != of_codes) return DoesNotFit("slot", i, of_slot, of_master);
  const bool has_codes = exponents(k, i) >= 0 && of_slot.dtype == tensorflow::DT_UINT8;
  if (!has_codes || SlotCodeOf(rule(), k) == SlotCode::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a slot must be float32, or uint8 with exponents where its rule allows them. "
        "Received: slot ",
        k, " of master ", i, ": ", DataTypeString(of_slot.dtype),
        exponents(k, i) < 0 ? " without" : " with", " exponents, for ",
        kRuleNames[rule_]));
  }
  const TensorView& of_exponents = inputs[exponents(k, i)];
  const TensorShape groups({SlotGroupsOf(size)});
  if (of_exponents.dtype == tensorflow::DT_UINT8 && of_exponents.shape == groups) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "exponents must be uint8, one for each ", kSlotGroup, " elements of their slot. "
      "Received: ", of_exponents.DebugString(), " for ", of_master.shape.DebugString()));
}

Update UpdateVariablesOp::UpdateOf(const Views& inputs,
                                   std::vector<Parameter>* parameters,
                                   std::vector<Matrices>* matrices) const {
  parameters->reserve(count());
  matrices->reserve(count());
  for (int i = 0; i < count(); ++i) {
    parameters->push_back(ParameterOf(inputs, i));
    matrices->push_back(MatricesOf(inputs[gradient(i)].shape));
  }
  Update update;
  update.count = count();
  update.parameters = parameters->data();
  update.matrices = matrices->data();
  update.rule = rule();
  if (is_stochastic_) update.rounding = Rounding::kStochastic;
  update.hyperparameters = inputs[kHyperparameters].As<UpdateHyperparameters>();
  update.finite = inputs[kFinite].As<bool>();
  return update;
}

Parameter UpdateVariablesOp::ParameterOf(const Views& inputs, int i) const {
  const TensorView& of_master = inputs[master(i)];
  Parameter parameter;
  parameter.gradient = GradientOf(inputs[gradient(i)]);
  for (int k = 0; k < slots(); ++k) {
    const TensorView& values = inputs[slot(k, i)];
    Slot& to = parameter.slots[k];
    if (exponents(k, i) >= 0) {
      (code_bits_ == 8 ? to.codes : to.pairs) = values.As<std::uint8_t>();
      to.exponents = inputs[exponents(k, i)].As<std::uint8_t>();
    } else if (UsesSlot(rule(), k, of_master.shape)) {
      to.values = values.As<float>();
    }
  }
  parameter.apply_weight_decay = apply_weight_decay_[i];
  parameter.pair =
      PairOf(of_master, weight(i) < 0 ? nullptr : &inputs[weight(i)]);
  if (uniform(i) >= 0) parameter.uniforms = inputs[uniform(i)].As<float>();
  if (powers(i) >= 0) parameter.powers = inputs[powers(i)].As<float>();
  return parameter;
}

}  // namespace keras_mp
