// The XLA FFI handlers of the update step: functions that XLA calls with buffers.
// `Context` is decoded from the execution context of a call; its backend() computes: a
// CpuBackend or a CudaBackend.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_XLA_FFI_HANDLERS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_XLA_FFI_HANDLERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/xla_ffi.h"
#include "keras_mp/update.h"
#include "update/arguments.h"
#include "update/xla_call_names.h"

namespace keras_mp::update_xla {

namespace ffi = xla::ffi;

// The operands or the results of a call.
class Buffers {
 public:
  explicit Buffers(const ffi::RemainingArgs& operands) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      buffers_.push_back(*operands.get<ffi::AnyBuffer>(i));
    }
  }
  explicit Buffers(const ffi::RemainingRets& results) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      buffers_.push_back(**results.get<ffi::AnyBuffer>(i));
    }
  }

  int size() const { return static_cast<int>(buffers_.size()); }

  template <class Number>
  Number* Data(int i) const {
    return i < 0 ? nullptr : static_cast<Number*>(buffers_[i].untyped_data());
  }

  std::int64_t Size(int i) const {
    return static_cast<std::int64_t>(buffers_[i].element_count());
  }

  Matrices MatricesIn(int i) const { return MatricesOf(buffers_[i].dimensions()); }

  bool Has(int i, ffi::DataType type, std::int64_t size) const {
    return buffers_[i].element_type() == type && Size(i) == size;
  }

  // Whether these buffers have the types and sizes of `others`, from the first-th on.
  bool Match(const Buffers& others, int first) const {
    bool match = first + size() <= others.size();
    for (int i = 0; match && i < size(); ++i) {
      match = others.Has(first + i, buffers_[i].element_type(), Size(i));
    }
    return match;
  }

  bool Has16Bits(int i) const {
    const ffi::DataType type = buffers_[i].element_type();
    return type == ffi::F16 || type == ffi::BF16;
  }

  bool HasGradient(int i, std::int64_t size) const {
    return Has(i, ffi::F32, size) || (Has16Bits(i) && Size(i) == size);
  }

  // `weight`: -1 for none.
  bool HasPair(int master, int weight) const {
    return Has(master, ffi::F32, Size(master)) &&
           (weight < 0 || (Has16Bits(weight) && Size(weight) == Size(master)));
  }

  DataType Type(int i) const {
    if (buffers_[i].element_type() == ffi::F16) return DataType::kHalf;
    if (buffers_[i].element_type() == ffi::BF16) return DataType::kBfloat16;
    return DataType::kFloat;
  }

  Gradient AsGradient(int i) const {
    Gradient gradient;
    gradient.size = Size(i);
    gradient.type = Type(i);
    gradient.values = Data<void>(i);
    return gradient;
  }

  // As HasPair, or a remainder and its weight, or a 16-bit weight alone.
  bool HasMaster(int master, int weight) const {
    if (weight < 0 && Has16Bits(master)) return true;
    const bool is_remainder = weight >= 0 && Has16Bits(weight) &&
                              (Has(master, ffi::S16, Size(weight)) ||
                               Has(master, ffi::S8, Size(weight)));
    return is_remainder || HasPair(master, weight);
  }

  // `exponents`: -1 for none.
  bool HasSlot(int slot, int exponents, std::int64_t code_bits, std::int64_t size) const {
    if (exponents < 0) return Has(slot, ffi::F32, size);
    return Has(slot, ffi::U8, code_bits == 8 ? size : SlotPairsOf(size)) &&
           Has(exponents, ffi::U8, SlotGroupsOf(size));
  }

  // `weight`: -1 for none.
  MasterPair AsPair(int master, int weight) const {
    MasterPair pair;
    pair.size = Size(master);
    if (Has16Bits(master)) {
      weight = master;
    } else if (buffers_[master].element_type() == ffi::S16) {
      pair.remainder = Data<std::int16_t>(master);
    } else if (buffers_[master].element_type() == ffi::S8) {
      pair.short_remainder = Data<std::int8_t>(master);
    } else {
      pair.master = Data<float>(master);
    }
    if (weight < 0) return pair;
    pair.type = Type(weight);
    pair.weight = Data<std::uint16_t>(weight);
    return pair;
  }

  // `exponents`: -1 for none.
  Slot AsSlot(int values, int exponents, std::int64_t code_bits) const {
    Slot slot;
    if (exponents < 0) {
      slot.values = Data<float>(values);
    } else {
      auto& codes = code_bits == 8 ? slot.codes : slot.pairs;
      codes = Data<std::uint8_t>(values);
      slot.exponents = Data<std::uint8_t>(exponents);
    }
    return slot;
  }

 private:
  std::vector<ffi::AnyBuffer> buffers_;
};

// Returns an error where XLA did not give a variable and its new value the same memory.
inline ffi::Error CheckInPlace(const Buffers& operands, int first,
                               const Buffers& results) {
  for (int i = 0; i < results.size(); ++i) {
    if (operands.Size(first + i) == 0) continue;
    if (results.Data<void>(i) != operands.Data<void>(first + i)) {
      return ffi::Error::Internal("XLA moved a variable that is updated in place");
    }
  }
  return ffi::Error::Success();
}

// The operands are [scale, gradients...], the last results [largest, sum_of_squares].
inline bool HasCheck(const Buffers& operands, const Buffers& results) {
  const int count = operands.size() - 1, last = results.size() - 1;
  bool fits = count >= 0 && last >= 1 && operands.Has(0, ffi::F32, 1) &&
              results.Has(last - 1, ffi::F32, count) && results.Has(last, ffi::F32, 1);
  for (int i = 1; fits && i <= count; ++i) {
    fits = operands.HasGradient(i, operands.Size(i));
  }
  return fits;
}

// Sets a sum that is not computed to 0.
template <class Backend>
Status MakeCheck(const Buffers& operands, const Buffers& results, const Backend& backend,
                 bool compute_sum_of_squares, std::vector<Gradient>* gradients,
                 GradientCheck* check) {
  for (int i = 1; i < operands.size(); ++i) {
    gradients->push_back(operands.AsGradient(i));
  }
  const int last = results.size() - 1;
  check->count = static_cast<std::int64_t>(gradients->size());
  check->gradients = gradients->data();
  check->scale = operands.Data<float>(0);
  check->largest = results.Data<float>(last - 1);
  if (!compute_sum_of_squares) return backend.SetZero(results.Data<float>(last));
  check->sum_of_squares = results.Data<float>(last);
  return {};
}

template <class Context>
ffi::Error CheckGradients(Context context, ffi::RemainingArgs args,
                          ffi::RemainingRets rets, bool compute_sum_of_squares) {
  const Buffers operands(args), results(rets);
  if (!HasCheck(operands, results) || results.size() != 2) {
    return Misfit(kCheckGradientsCall);
  }
  const auto backend = context.backend();
  std::vector<Gradient> gradients;
  GradientCheck check;
  const Status status = MakeCheck(operands, results, backend, compute_sum_of_squares,
                                  &gradients, &check);
  return ToError(status.ok() ? backend.Check(check) : status);
}

template <class Context>
ffi::Error UnscaleGradients(Context context, ffi::RemainingArgs args,
                            ffi::RemainingRets rets, bool compute_sum_of_squares) {
  const Buffers operands(args), results(rets);
  const int count = operands.size() - 1;
  bool fits = HasCheck(operands, results) && results.size() == count + 2;
  for (int i = 0; fits && i < count; ++i) {
    fits = results.Has(i, ffi::F32, operands.Size(1 + i));
  }
  if (!fits) return Misfit(kUnscaleGradientsCall);
  const auto backend = context.backend();
  std::vector<Gradient> gradients;
  GradientCheck check;
  const Status status = MakeCheck(operands, results, backend, compute_sum_of_squares,
                                  &gradients, &check);
  std::vector<float*> unscaled;
  for (int i = 0; i < count; ++i) unscaled.push_back(results.Data<float>(i));
  return ToError(status.ok() ? backend.Unscale(check, unscaled.data()) : status);
}

// The operands are [masters, weights, uniforms], the results [masters, weights].
inline bool HasPairs(const Buffers& operands, const Buffers& results, bool has_uniforms) {
  const int count = results.size() / 2;
  bool fits = results.size() == 2 * count && results.Match(operands, 0) &&
              operands.size() == (has_uniforms ? 3 : 2) * count;
  for (int i = 0; fits && i < count; ++i) {
    fits = operands.HasPair(i, count + i) &&
           (!has_uniforms || operands.Has(2 * count + i, ffi::F32, operands.Size(i)));
  }
  return fits;
}

inline std::vector<MasterPair> MakePairs(const Buffers& operands,
                                         const Buffers& results) {
  const int count = results.size() / 2;
  std::vector<MasterPair> pairs;
  for (int i = 0; i < count; ++i) pairs.push_back(operands.AsPair(i, count + i));
  return pairs;
}

template <class Context>
ffi::Error SyncMastersFromWeights(Context context, ffi::RemainingArgs args,
                                  ffi::RemainingRets rets, bool is_stochastic) {
  const Buffers operands(args), results(rets);
  if (!HasPairs(operands, results, /*has_uniforms=*/false)) {
    return Misfit(kSyncMastersFromWeightsCall);
  }
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  const auto rounding = is_stochastic ? Rounding::kStochastic : Rounding::kNearest;
  return ToError(context.backend().SyncMasters(
      pairs.data(), static_cast<std::int64_t>(pairs.size()), rounding));
}

template <class Context>
ffi::Error CastMasters(Context context, ffi::RemainingArgs args, ffi::RemainingRets rets,
                       bool is_stochastic) {
  const Buffers operands(args), results(rets);
  if (!HasPairs(operands, results, is_stochastic)) return Misfit(kCastMastersCall);
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  std::vector<const float*> uniforms;
  for (int i = results.size(); i < operands.size(); ++i) {
    uniforms.push_back(operands.Data<float>(i));
  }
  return ToError(
      context.backend().Cast(pairs.data(), static_cast<std::int64_t>(pairs.size()),
                            is_stochastic ? uniforms.data() : nullptr));
}

inline bool HasUpdate(const Buffers& operands, const Buffers& results,
                      const UpdateArguments& arguments) {
  bool fits = operands.size() == arguments.input_count() &&
              results.size() ==
                  arguments.end_of_variables() - arguments.first_variable() &&
              results.Match(operands, arguments.first_variable()) &&
              operands.Has(UpdateArguments::kFinite, ffi::PRED, 1) &&
              operands.Has(UpdateArguments::kHyperparameters, ffi::F32,
                           UpdateArguments::kHyperparameterCount);
  for (int i = 0; fits && i < arguments.count(); ++i) {
    const int master = arguments.master(i);
    const std::int64_t size = operands.Size(master);
    fits = operands.HasMaster(master, arguments.weight(i)) &&
           operands.HasGradient(arguments.gradient(i), size);
    for (int k = 0; k < arguments.slots(); ++k) {
      const std::int64_t elements = SlotSize(
          arguments.rule(), k, size, operands.MatricesIn(arguments.gradient(i)));
      fits = fits && (elements == 0 || operands.HasSlot(arguments.slot(k, i),
                                                        arguments.exponents(k, i),
                                                        arguments.code_bits(), elements));
    }
    if (arguments.uniform(i) >= 0) {
      fits = fits && operands.Has(arguments.uniform(i), ffi::F32, size);
    }
    if (arguments.powers(i) >= 0) {
      fits = fits && operands.Has(arguments.powers(i), ffi::F32, size);
    }
  }
  return fits;
}

template <class Context>
ffi::Error UpdateVariables(Context context, ffi::RemainingArgs args,
                           ffi::RemainingRets rets, std::int64_t rule, bool is_stochastic,
                           ffi::Span<const std::int64_t> weight_of,
                           ffi::Span<const std::int64_t> exponent_of,
                           std::int64_t code_bits,
                           ffi::Span<const std::int64_t> power_of,
                           ffi::Span<const std::int64_t> apply_weight_decay) {
  const Buffers operands(args), results(rets);
  const std::vector<std::int64_t> weights = {weight_of.begin(), weight_of.end()};
  const std::vector<std::int64_t> coded = {exponent_of.begin(), exponent_of.end()};
  const std::vector<std::int64_t> sparse = {power_of.begin(), power_of.end()};
  if (rule < 0 || rule >= kUpdateRules) return Misfit(kUpdateVariablesCall);
  const auto known_rule = static_cast<UpdateRule>(rule);
  const int count = static_cast<int>(apply_weight_decay.size());
  if (!UpdateArguments::AreDistinct(weights, count) ||
      !UpdateArguments::AreDistinct(coded, SlotsOf(known_rule) * count) ||
      !UpdateArguments::AreDistinct(sparse, count) ||
      !UpdateArguments::IsCodeSize(code_bits) ||
      (!sparse.empty() && !TakesPowers(known_rule))) {
    return Misfit(kUpdateVariablesCall);
  }
  const UpdateArguments arguments(known_rule, is_stochastic, weights, coded, code_bits,
                                  sparse,
                                  {apply_weight_decay.begin(), apply_weight_decay.end()});
  if (!HasUpdate(operands, results, arguments)) return Misfit(kUpdateVariablesCall);
  ffi::Error error = CheckInPlace(operands, arguments.first_variable(), results);
  if (error.failure()) return error;
  std::vector<Parameter> parameters(arguments.count());
  std::vector<Matrices> matrices;
  for (int i = 0; i < arguments.count(); ++i) {
    Parameter& parameter = parameters[i];
    parameter.gradient = operands.AsGradient(arguments.gradient(i));
    matrices.push_back(operands.MatricesIn(arguments.gradient(i)));
    parameter.apply_weight_decay = arguments.apply_weight_decay()[i] != 0;
    parameter.pair = operands.AsPair(arguments.master(i), arguments.weight(i));
    parameter.uniforms = operands.Data<float>(arguments.uniform(i));
    parameter.powers = operands.Data<float>(arguments.powers(i));
    for (int k = 0; k < arguments.slots(); ++k) {
      parameter.slots[k] =
          operands.AsSlot(arguments.slot(k, i), arguments.exponents(k, i), code_bits);
    }
  }
  Update update;
  update.count = arguments.count();
  update.parameters = parameters.data();
  update.matrices = matrices.data();
  update.rule = arguments.rule();
  if (is_stochastic) update.rounding = Rounding::kStochastic;
  update.hyperparameters =
      operands.Data<UpdateHyperparameters>(UpdateArguments::kHyperparameters);
  update.finite = operands.Data<bool>(UpdateArguments::kFinite);
  return ToError(context.backend().Update(update));
}

// The handlers for one platform.
template <class Context>
struct Handlers {
  static auto Bind() {
    return ffi::Ffi::Bind().Ctx<Context>().RemainingArgs().RemainingRets();
  }

  XLA_FFI_DEFINE_HANDLER(kCheckGradients, CheckGradients<Context>,
                         Bind().template Attr<bool>("compute_sum_of_squares"));
  XLA_FFI_DEFINE_HANDLER(kUnscaleGradients, UnscaleGradients<Context>,
                         Bind().template Attr<bool>("compute_sum_of_squares"));
  XLA_FFI_DEFINE_HANDLER(kSyncMastersFromWeights, SyncMastersFromWeights<Context>,
                         Bind().template Attr<bool>("is_stochastic"));
  XLA_FFI_DEFINE_HANDLER(kCastMasters, CastMasters<Context>,
                         Bind().template Attr<bool>("is_stochastic"));
  using Integers = ffi::Span<const std::int64_t>;
  XLA_FFI_DEFINE_HANDLER(kUpdateVariables, UpdateVariables<Context>,
                         Bind()
                             .template Attr<std::int64_t>("rule")
                             .template Attr<bool>("is_stochastic")
                             .template Attr<Integers>("weight_of")
                             .template Attr<Integers>("exponent_of")
                             .template Attr<std::int64_t>("code_bits")
                             .template Attr<Integers>("power_of")
                             .template Attr<Integers>("apply_weight_decay"));
};

#define KERAS_MP_REGISTER_HANDLERS(platform, Context)                              \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCheckGradientsCall, platform,     \
                           update_xla::Handlers<Context>::kCheckGradients);        \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUnscaleGradientsCall, platform,   \
                           update_xla::Handlers<Context>::kUnscaleGradients);      \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kSyncMastersFromWeightsCall,       \
                           platform,                                               \
                           update_xla::Handlers<Context>::kSyncMastersFromWeights);\
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCastMastersCall, platform,        \
                           update_xla::Handlers<Context>::kCastMasters);           \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUpdateVariablesCall, platform,    \
                           update_xla::Handlers<Context>::kUpdateVariables)

}  // namespace keras_mp::update_xla

#endif  // KERAS_MP_TENSORFLOW_UPDATE_XLA_FFI_HANDLERS_H_
