#include "update/arguments.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

using tensorflow::TensorShape;

UpdateRule RuleNamed(const std::string& name) {
  const auto* found = std::find(std::begin(kRuleNames), std::end(kRuleNames), name);
  return static_cast<UpdateRule>(found - std::begin(kRuleNames));
}

absl::Status Misfit(const char* name, int i, const TensorSpec& spec,
                    const TensorSpec& master) {
  return absl::InvalidArgumentError(absl::StrCat(
      name, " ", i, " must fit the master. Received: ",
      DataTypeString(spec.dtype), " ", spec.shape.DebugString(), " for ",
      DataTypeString(master.dtype), " ", master.shape.DebugString()));
}

// The checks of the i-th tensor of a name: it has the shape of its master,
absl::Status CheckShape(const char* name, int i, const TensorSpec& spec,
                        const TensorSpec& master) {
  if (spec.shape == master.shape) return absl::OkStatus();
  return Misfit(name, i, spec, master);
}

// and is FP32,
absl::Status CheckFp32(const char* name, int i, const TensorSpec& spec,
                       const TensorSpec& master) {
  if (spec.dtype != tensorflow::DT_FLOAT) return Misfit(name, i, spec, master);
  return CheckShape(name, i, spec, master);
}

// The shape of a slot: that of its master, or for means over a dimension without that.
TensorShape SlotShape(UpdateRule rule, int slot, TensorShape master) {
  if (rule == UpdateRule::kAdafactor && slot > 0) master.RemoveDim(master.dims() - slot);
  return master;
}

// Whether the rule has such a slot of a variable: kAdafactor has means of matrices alone.
bool UsesSlot(UpdateRule rule, int slot, const TensorShape& master) {
  return rule != UpdateRule::kAdafactor || slot == 0 || master.dims() >= 2;
}

bool Has16Bits(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
}

// or has 16 bits.
absl::Status CheckWeight(int i, const TensorSpec& spec, const TensorSpec& master) {
  if (!Has16Bits(spec.dtype)) {
    return Misfit("weight", i, spec, master);
  }
  return CheckShape("weight", i, spec, master);
}

}  // namespace

absl::Status CheckScalar(const char* name, const TensorShape& shape) {
  if (shape.dims() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be a scalar. Received: a tensor of shape ", shape.DebugString()));
}

absl::Status CheckResultCount(int gradients, int results) {
  if (results == gradients) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there must be a result for each gradient. Received: ", gradients,
                   " gradients, count=", results));
}

absl::Status CheckUniformCount(tensorflow::OpKernelConstruction* ctx) {
  int count, uniform_count;
  TF_RETURN_IF_ERROR(ctx->GetAttr("count", &count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("uniform_count", &uniform_count));
  if (uniform_count == 0 || uniform_count == count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there must be one of `uniforms` for each weight, or none. Received: ",
                   count, " weights, ", uniform_count, " uniforms"));
}

absl::Status CheckPairs(const std::vector<TensorSpec>& inputs, int count) {
  for (int i = 0; i < count; ++i) {
    const TensorSpec& master = inputs[i];
    TF_RETURN_IF_ERROR(CheckFp32("master", i, master, master));
    TF_RETURN_IF_ERROR(CheckWeight(i, inputs[count + i], master));
  }
  for (int i = 2 * count; i < static_cast<int>(inputs.size()); ++i) {
    const int master = i - 2 * count;
    TF_RETURN_IF_ERROR(CheckShape("uniform", master, inputs[i], inputs[master]));
  }
  return absl::OkStatus();
}

UpdateArguments::UpdateArguments(UpdateRule rule, bool is_stochastic,
                                 std::vector<std::int64_t> weight_of,
                                 std::vector<std::int64_t> exponent_of,
                                 std::int64_t code_bits,
                                 std::vector<std::int64_t> power_of,
                                 std::vector<std::int64_t> apply_weight_decay)
    : rule_(rule),
      is_stochastic_(is_stochastic),
      code_bits_(code_bits),
      weight_of_(std::move(weight_of)),
      exponent_of_(std::move(exponent_of)),
      power_of_(std::move(power_of)),
      apply_weight_decay_(std::move(apply_weight_decay)),
      weights_(count(), -1),
      exponents_(slots() * count(), -1),
      uniforms_(count(), -1),
      powers_(count(), -1) {
  for (int k = 0; k < weight_count(); ++k) {
    weights_[weight_of_[k]] = first_weight() + k;
    if (is_stochastic_) uniforms_[weight_of_[k]] = end_of_variables() + k;
  }
  for (std::size_t k = 0; k < exponent_of_.size(); ++k) {
    exponents_[exponent_of_[k]] = first_weight() + weight_count() + static_cast<int>(k);
  }
  for (std::size_t k = 0; k < power_of_.size(); ++k) {
    powers_[power_of_[k]] = first_powers() + static_cast<int>(k);
  }
}

absl::Status UpdateArguments::Read(tensorflow::OpKernelConstruction* ctx) {
  int count, slots, weight_count, exponent_count, uniform_count, power_count;
  std::int64_t code_bits;
  std::string rule;
  std::vector<std::int64_t> weight_of, exponent_of, power_of;
  std::vector<bool> apply_weight_decay;
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("count", &count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_count", &slots));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weight_count", &weight_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exponent_count", &exponent_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("uniform_count", &uniform_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("power_count", &power_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weight_of", &weight_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exponent_of", &exponent_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("code_bits", &code_bits));
  TF_RETURN_IF_ERROR(ctx->GetAttr("power_of", &power_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("apply_weight_decay", &apply_weight_decay));
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &types));
  const bool is_stochastic = uniform_count > 0;
  const auto has = [](const auto& list, int size) {
    return list.size() == static_cast<std::size_t>(size);
  };
  const bool fits = has(types, count) && has(apply_weight_decay, count) &&
                    has(weight_of, weight_count) && has(exponent_of, exponent_count) &&
                    has(power_of, power_count) &&
                    (!is_stochastic || uniform_count == weight_count) &&
                    slots == SlotsOf(RuleNamed(rule)) * count &&
                    AreDistinct(weight_of, count) && AreDistinct(exponent_of, slots) &&
                    AreDistinct(power_of, count) && IsCodeSize(code_bits);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the lists must match, each weight have a master of its own, all exponents a slot "
        "of their own, and powers a gradient; codes have 8 or 4 bits. Received: ",
        count, " masters, ", types.size(), " gradients, ", apply_weight_decay.size(),
        " of apply_weight_decay, ", slots, " slots for ", rule, ", ", weight_count,
        " weights, ", exponent_count, " exponents, ", uniform_count, " uniforms, ",
        power_count, " powers, code_bits=", code_bits));
  }
  *this = UpdateArguments(RuleNamed(rule), is_stochastic, std::move(weight_of),
                          std::move(exponent_of), code_bits, std::move(power_of),
                          {apply_weight_decay.begin(), apply_weight_decay.end()});
  return absl::OkStatus();
}

bool UpdateArguments::AreDistinct(const std::vector<std::int64_t>& indices, int count) {
  std::vector<bool> taken(count);
  for (std::int64_t i : indices) {
    if (i < 0 || i >= count || taken[i]) return false;
    taken[i] = true;
  }
  return true;
}

absl::Status UpdateArguments::CheckInputs(const std::vector<TensorSpec>& inputs) const {
  TF_RETURN_IF_ERROR(CheckScalar("finite", inputs[kFinite].shape));
  const TensorShape& shape = inputs[kHyperparameters].shape;
  if (shape.dims() != 1 || shape.dim_size(0) != kHyperparameterCount) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there must be ", kHyperparameterCount,
        " hyperparameters. Received: ", shape.DebugString()));
  }
  if (!power_of_.empty() && !TakesPowers(rule_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rule takes no powers of gradients. Received: ",
                     power_of_.size(), " for ", kRuleNames[static_cast<int>(rule_)]));
  }
  for (int i = 0; i < count(); ++i) {
    const TensorSpec& of_master = inputs[master(i)];
    TF_RETURN_IF_ERROR(CheckMaster(inputs, i));
    TF_RETURN_IF_ERROR(CheckShape("gradient", i, inputs[gradient(i)], of_master));
    for (int k = 0; k < slots(); ++k) TF_RETURN_IF_ERROR(CheckSlot(inputs, k, i));
    if (weight(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckWeight(i, inputs[weight(i)], of_master));
    }
    if (uniform(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckShape("uniform", i, inputs[uniform(i)], of_master));
    }
    if (powers(i) >= 0) {
      TF_RETURN_IF_ERROR(CheckShape("powers", i, inputs[powers(i)], of_master));
    }
  }
  return absl::OkStatus();
}

absl::Status UpdateArguments::CheckMaster(const std::vector<TensorSpec>& inputs,
                                          int i) const {
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

absl::Status UpdateArguments::CheckSlot(const std::vector<TensorSpec>& inputs, int k,
                                        int i) const {
  const TensorSpec &of_slot = inputs[slot(k, i)], &of_master = inputs[master(i)];
  if (exponents(k, i) >= 0) return CheckCodes(inputs, k, i);
  if (!UsesSlot(rule_, k, of_master.shape)) return absl::OkStatus();
  if (of_slot.shape != SlotShape(rule_, k, of_master.shape)) {
    return Misfit("slot", i, of_slot, of_master);
  }
  return of_slot.dtype == tensorflow::DT_FLOAT ? absl::OkStatus()
                                               : CheckCodes(inputs, k, i);
}

absl::Status UpdateArguments::CheckCodes(const std::vector<TensorSpec>& inputs, int k,
                                         int i) const {
  const TensorSpec &of_slot = inputs[slot(k, i)], &of_master = inputs[master(i)];
  const std::int64_t size = of_master.shape.num_elements();
  const TensorShape of_codes =
      code_bits_ == 8 ? of_master.shape : TensorShape({SlotPairsOf(size)});
  if (of_slot.shape != of_codes) return Misfit("slot", i, of_slot, of_master);
  const bool has_codes = exponents(k, i) >= 0 && of_slot.dtype == tensorflow::DT_UINT8;
  if (!has_codes || SlotCodeOf(rule_, k) == SlotCode::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a slot must be float32, or uint8 with exponents where its rule allows them. "
        "Received: slot ",
        k, " of master ", i, ": ", DataTypeString(of_slot.dtype),
        exponents(k, i) < 0 ? " without" : " with", " exponents, for ",
        kRuleNames[static_cast<int>(rule_)]));
  }
  const TensorSpec& of_exponents = inputs[exponents(k, i)];
  const TensorShape groups({SlotGroupsOf(size)});
  if (of_exponents.dtype == tensorflow::DT_UINT8 && of_exponents.shape == groups) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "exponents must be uint8, one for each ", kSlotGroup, " elements of their slot. "
      "Received: ", DataTypeString(of_exponents.dtype), " ",
      of_exponents.shape.DebugString(), " for ", of_master.shape.DebugString()));
}

}  // namespace keras_mp
