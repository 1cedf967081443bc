// Checks that the arrays of a step are one of the forms that keras_mp/update.h allows.

#ifndef KERAS_MP_SRC_COMMON_UPDATE_FORMS_H_
#define KERAS_MP_SRC_COMMON_UPDATE_FORMS_H_

#include <cstdint>

#include "keras_mp/status.h"
#include "keras_mp/update.h"

namespace keras_mp {

// Whether any number of the variable is held in fewer bytes than FP32 has.
inline bool IsCompressed(const Parameter& parameter) {
  for (const Slot& slot : parameter.slots) {
    if (slot.exponents) return true;
  }
  return parameter.gradient.size > 0 && parameter.pair.master == nullptr;
}

inline bool HasPowers(const Update& update) {
  for (std::int64_t i = 0; i < update.count; ++i) {
    if (update.parameters[i].powers) return true;
  }
  return false;
}

// Arrays without elements may be null.
inline Status CheckForms(const Update& update) {
  if (update.rule == UpdateRule::kAdafactor && !update.matrices && update.count > 0) {
    return {StatusCode::kInvalidArgument, "the rule needs the matrices of the variables"};
  }
  for (std::int64_t i = 0; i < update.count; ++i) {
    const Parameter& parameter = update.parameters[i];
    if (parameter.gradient.size == 0) continue;
    const MasterPair& pair = parameter.pair;
    const int masters = (pair.master != nullptr) + (pair.remainder != nullptr) +
                        (pair.short_remainder != nullptr);
    const bool has_own_weight = pair.weight && !parameter.uniforms;
    if (masters > 1 || (!pair.master && !has_own_weight)) {
      return {StatusCode::kInvalidArgument,
              "a variable has a master, a master and a weight, a weight and a remainder, "
              "or a weight alone; uniforms are for a master and a weight"};
    }
    if (parameter.powers && !TakesPowers(update.rule)) {
      return {StatusCode::kInvalidArgument, "the rule takes no powers of gradients"};
    }
    const Matrices matrices = update.matrices ? update.matrices[i] : Matrices{};
    const std::int64_t elements = matrices.count * matrices.rows * matrices.columns;
    if (matrices.count != 0 && elements != parameter.gradient.size) {
      return {StatusCode::kInvalidArgument, "the matrices of a variable are all of it"};
    }
    for (int k = 0; k < SlotsOf(update.rule); ++k) {
      if (SlotSize(update.rule, k, parameter.gradient.size, matrices) == 0) continue;
      const Slot& slot = parameter.slots[k];
      const bool has_codes = (slot.codes != nullptr) != (slot.pairs != nullptr);
      const bool is_coded = has_codes && slot.exponents && !slot.values &&
                            SlotCodeOf(update.rule, k) != SlotCode::kNone;
      const bool is_fp32 = slot.values && !slot.codes && !slot.pairs && !slot.exponents;
      if (!is_coded && !is_fp32) {
        return {StatusCode::kInvalidArgument,
                "a slot has FP32 values, or codes or pairs, and exponents, where its rule "
                "allows them"};
      }
    }
  }
  return {};
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_UPDATE_FORMS_H_
