// The kernels of the update step as XLA calls them. `Context` is what XLA tells of a call,
// with a CtxDecoding and a device(): UpdateOnCpu or UpdateOnCuda.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_XLA_HANDLERS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_XLA_HANDLERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keras_mp/update.h"
#include "update_arguments.h"
#include "update_xla_calls.h"
#include "xla/ffi/api/ffi.h"

// Its header needs one of MLIR, which TensorFlow does not ship.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_mp::update_xla {

namespace ffi = xla::ffi;

inline ffi::Error ToError(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error::Internal(status.message);
}

// The operands of a call.
class Operands {
 public:
  explicit Operands(const ffi::RemainingArgs& args) {
    for (std::size_t i = 0; i < args.size(); ++i) {
      buffers_.push_back(*args.get<ffi::AnyBuffer>(i));
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

  // `weight`: -1 for none.
  MasterPair AsPair(int master, int weight) const {
    MasterPair pair;
    pair.size = Size(master);
    pair.master = Data<float>(master);
    if (weight < 0) return pair;
    pair.type = Type(weight);
    pair.weight = Data<std::uint16_t>(weight);
    return pair;
  }

 private:
  std::vector<ffi::AnyBuffer> buffers_;
};

template <class Number>
Number* ResultData(const ffi::RemainingRets& results, std::size_t i) {
  return static_cast<Number*>((*results.get<ffi::AnyBuffer>(i))->untyped_data());
}

// Says where XLA did not give a variable and its new value the same memory.
inline ffi::Error CheckInPlace(const Operands& operands, int first,
                               const ffi::RemainingRets& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int operand = first + static_cast<int>(i);
    if (operands.Size(operand) == 0) continue;
    if (ResultData<void>(results, i) != operands.Data<void>(operand)) {
      return ffi::Error::Internal("XLA moved a variable that is updated in place");
    }
  }
  return ffi::Error::Success();
}

// The operands [scale, gradients...].
inline GradientCheck MakeCheck(const Operands& operands,
                               std::vector<Gradient>* gradients, bool* overflows) {
  for (int i = 1; i < operands.size(); ++i) {
    gradients->push_back(operands.AsGradient(i));
  }
  GradientCheck check;
  check.count = static_cast<std::int64_t>(gradients->size());
  check.gradients = gradients->data();
  check.scale = operands.Data<float>(0);
  check.overflows = overflows;
  return check;
}

template <class Context>
ffi::Error CheckGradients(Context context, ffi::RemainingArgs args,
                          ffi::RemainingRets results, bool sums_squares) {
  std::vector<Gradient> gradients;
  GradientCheck check =
      MakeCheck(Operands(args), &gradients, ResultData<bool>(results, 0));
  const auto device = context.device();
  float* const squares = ResultData<float>(results, 1);
  if (sums_squares) {
    check.squares = squares;
  } else {
    const Status status = device.SetZero(squares);
    if (!status.ok()) return ToError(status);
  }
  return ToError(device.Check(check));
}

template <class Context>
ffi::Error UnscaleGradients(Context context, ffi::RemainingArgs args,
                            ffi::RemainingRets results) {
  std::vector<Gradient> gradients;
  const std::size_t count = results.size() - 1;
  const GradientCheck check =
      MakeCheck(Operands(args), &gradients, ResultData<bool>(results, count));
  std::vector<float*> unscaled;
  for (std::size_t i = 0; i < count; ++i) {
    unscaled.push_back(ResultData<float>(results, i));
  }
  return ToError(context.device().Unscale(check, unscaled.data()));
}

// The pairs of the first results.size() operands, [masters, weights].
inline std::vector<MasterPair> MakePairs(const Operands& operands,
                                         const ffi::RemainingRets& results) {
  const int count = static_cast<int>(results.size() / 2);
  std::vector<MasterPair> pairs;
  for (int i = 0; i < count; ++i) pairs.push_back(operands.AsPair(i, count + i));
  return pairs;
}

template <class Context>
ffi::Error FollowWeights(Context context, ffi::RemainingArgs args,
                         ffi::RemainingRets results, bool is_stochastic) {
  const Operands operands(args);
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  const auto rounding = is_stochastic ? Rounding::kStochastic : Rounding::kNearest;
  return ToError(context.device().Follow(
      pairs.data(), static_cast<std::int64_t>(pairs.size()), rounding));
}

template <class Context>
ffi::Error CastMasters(Context context, ffi::RemainingArgs args,
                       ffi::RemainingRets results, bool is_stochastic) {
  const Operands operands(args);
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  std::vector<const float*> uniforms;
  for (int i = static_cast<int>(results.size()); i < operands.size(); ++i) {
    uniforms.push_back(operands.Data<float>(i));
  }
  return ToError(
      context.device().Cast(pairs.data(), static_cast<std::int64_t>(pairs.size()),
                            is_stochastic ? uniforms.data() : nullptr));
}

template <class Context>
ffi::Error UpdateVariables(Context context, ffi::RemainingArgs args,
                           ffi::RemainingRets results, std::int64_t rule,
                           bool is_stochastic, ffi::Span<const std::int64_t> weight_of,
                           ffi::Span<const std::int64_t> decays) {
  const Operands operands(args);
  const UpdateArguments arguments(static_cast<UpdateRule>(rule), is_stochastic,
                                  {weight_of.begin(), weight_of.end()},
                                  {decays.begin(), decays.end()});
  ffi::Error error = CheckInPlace(operands, arguments.first_variable(), results);
  if (error.failure()) return error;
  std::vector<Parameter> parameters(arguments.count());
  for (int i = 0; i < arguments.count(); ++i) {
    Parameter& parameter = parameters[i];
    parameter.gradient = operands.AsGradient(arguments.gradient(i));
    parameter.decays = arguments.decays()[i] != 0;
    parameter.pair = operands.AsPair(arguments.master(i), arguments.weight(i));
    parameter.uniforms = operands.Data<float>(arguments.uniform(i));
    for (int k = 0; k < 2; ++k) {
      parameter.slots[k] = operands.Data<float>(arguments.slot(k, i));
    }
  }
  Update update;
  update.count = arguments.count();
  update.parameters = parameters.data();
  update.rule = arguments.rule();
  if (is_stochastic) update.rounding = Rounding::kStochastic;
  update.numbers = operands.Data<UpdateNumbers>(UpdateArguments::kNumbers);
  update.finite = operands.Data<bool>(UpdateArguments::kFinite);
  return ToError(context.device().Update(update));
}

// The handlers of one platform.
template <class Context>
struct Handlers {
  static auto Bind() {
    return ffi::Ffi::Bind().Ctx<Context>().RemainingArgs().RemainingRets();
  }

  XLA_FFI_DEFINE_HANDLER(kCheckGradients, CheckGradients<Context>,
                         Bind().template Attr<bool>("sums_squares"));
  XLA_FFI_DEFINE_HANDLER(kUnscaleGradients, UnscaleGradients<Context>, Bind());
  XLA_FFI_DEFINE_HANDLER(kFollowWeights, FollowWeights<Context>,
                         Bind().template Attr<bool>("is_stochastic"));
  XLA_FFI_DEFINE_HANDLER(kCastMasters, CastMasters<Context>,
                         Bind().template Attr<bool>("is_stochastic"));
  XLA_FFI_DEFINE_HANDLER(kUpdateVariables, UpdateVariables<Context>,
                         Bind()
                             .template Attr<std::int64_t>("rule")
                             .template Attr<bool>("is_stochastic")
                             .template Attr<ffi::Span<const std::int64_t>>("weight_of")
                             .template Attr<ffi::Span<const std::int64_t>>("decays"));
};

#define KERAS_MP_REGISTER_HANDLERS(platform, Context)                              \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCheckGradientsCall, platform,     \
                           update_xla::Handlers<Context>::kCheckGradients);        \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUnscaleGradientsCall, platform,   \
                           update_xla::Handlers<Context>::kUnscaleGradients);      \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kFollowWeightsCall, platform,      \
                           update_xla::Handlers<Context>::kFollowWeights);         \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCastMastersCall, platform,        \
                           update_xla::Handlers<Context>::kCastMasters);           \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUpdateVariablesCall, platform,    \
                           update_xla::Handlers<Context>::kUpdateVariables)

}  // namespace keras_mp::update_xla

#endif  // KERAS_MP_TENSORFLOW_UPDATE_XLA_HANDLERS_H_
