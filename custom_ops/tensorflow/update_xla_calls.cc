// The kernels of the update step as XLA calls them on a CPU.

#include "update_xla_calls.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "keras_mp/update_cpu.h"
#include "update_arguments.h"
#include "xla/ffi/api/ffi.h"

// Its header needs one of MLIR, which TensorFlow does not ship.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

// The indices of one loop, which any thread takes as they come. Threads that come when
// all are taken find nothing to do, so only the last index is waited for.
struct Loop {
  std::int64_t count;
  void* context;
  Parallel::Body body;
  std::atomic<std::int64_t> next{0};
  std::int64_t done = 0;
  std::mutex mutex;
  std::condition_variable all_done;

  void Work() {
    std::int64_t mine = 0;
    for (std::int64_t i; (i = next++) < count; ++mine) body(context, i);
    if (mine == 0) return;
    const std::lock_guard<std::mutex> lock(mutex);
    done += mine;
    if (done == count) all_done.notify_one();
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done == count; });
  }
};

// XLA's threads as the kernels take them.
Parallel Threads(ffi::ThreadPool& pool) {
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto& pool = *static_cast<ffi::ThreadPool*>(state);
    const auto loop = std::make_shared<Loop>();
    loop->count = count;
    loop->context = context;
    loop->body = body;
    for (std::int64_t i = 1; i < std::min(count, pool.num_threads()); ++i) {
      pool.Schedule([loop] { loop->Work(); });
    }
    loop->Work();
    loop->Wait();
  };
  const auto threads = std::max<std::int64_t>(1, pool.num_threads());
  return {static_cast<int>(threads), &pool, run};
}

ffi::Error ToError(const Status& status) {
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
ffi::Error CheckInPlace(const Operands& operands, int first,
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
GradientCheck MakeCheck(const Operands& operands, std::vector<Gradient>* gradients,
                        bool* overflows) {
  for (int i = 1; i < operands.size(); ++i) {
    gradients->push_back(operands.AsGradient(i));
  }
  GradientCheck check;
  check.count = static_cast<std::int64_t>(gradients->size());
  check.gradients = gradients->data();
  check.scale = *operands.Data<float>(0);
  check.overflows = overflows;
  return check;
}

ffi::Error CheckGradients(ffi::ThreadPool pool, ffi::RemainingArgs args,
                          ffi::RemainingRets results, bool sums_squares) {
  std::vector<Gradient> gradients;
  double squares = 0;
  GradientCheck check =
      MakeCheck(Operands(args), &gradients, ResultData<bool>(results, 0));
  if (sums_squares) check.squares = &squares;
  const Status status = CheckGradientsCpu(check, Threads(pool));
  *ResultData<float>(results, 1) = static_cast<float>(squares);
  return ToError(status);
}

ffi::Error UnscaleGradients(ffi::ThreadPool pool, ffi::RemainingArgs args,
                            ffi::RemainingRets results) {
  std::vector<Gradient> gradients;
  const std::size_t count = results.size() - 1;
  const GradientCheck check =
      MakeCheck(Operands(args), &gradients, ResultData<bool>(results, count));
  std::vector<float*> unscaled;
  for (std::size_t i = 0; i < count; ++i) {
    unscaled.push_back(ResultData<float>(results, i));
  }
  return ToError(UnscaleGradientsCpu(check, unscaled.data(), Threads(pool)));
}

// The pairs of the first results.size() operands, [masters, weights].
std::vector<MasterPair> MakePairs(const Operands& operands,
                                  const ffi::RemainingRets& results) {
  const int count = static_cast<int>(results.size() / 2);
  std::vector<MasterPair> pairs;
  for (int i = 0; i < count; ++i) pairs.push_back(operands.AsPair(i, count + i));
  return pairs;
}

ffi::Error FollowWeights(ffi::ThreadPool pool, ffi::RemainingArgs args,
                         ffi::RemainingRets results, bool is_stochastic) {
  const Operands operands(args);
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  const auto rounding = is_stochastic ? Rounding::kStochastic : Rounding::kNearest;
  return ToError(FollowWeightsCpu(pairs.data(), static_cast<std::int64_t>(pairs.size()),
                                  rounding, Threads(pool)));
}

ffi::Error CastMasters(ffi::ThreadPool pool, ffi::RemainingArgs args,
                       ffi::RemainingRets results, bool is_stochastic) {
  const Operands operands(args);
  ffi::Error error = CheckInPlace(operands, 0, results);
  if (error.failure()) return error;
  const auto pairs = MakePairs(operands, results);
  std::vector<const float*> uniforms;
  for (int i = static_cast<int>(results.size()); i < operands.size(); ++i) {
    uniforms.push_back(operands.Data<float>(i));
  }
  return ToError(CastMastersCpu(pairs.data(), static_cast<std::int64_t>(pairs.size()),
                                is_stochastic ? uniforms.data() : nullptr,
                                Threads(pool)));
}

ffi::Error UpdateVariables(ffi::ThreadPool pool, ffi::RemainingArgs args,
                           ffi::RemainingRets results, std::int64_t rule,
                           bool is_stochastic, ffi::Span<const std::int64_t> weight_of,
                           ffi::Span<const std::int64_t> decays) {
  const Operands operands(args);
  const UpdateArguments arguments(static_cast<UpdateRule>(rule), is_stochastic,
                                  {weight_of.begin(), weight_of.end()},
                                  {decays.begin(), decays.end()});
  ffi::Error error = CheckInPlace(operands, arguments.first_variable(), results);
  if (error.failure() || !*operands.Data<bool>(UpdateArguments::kFinite)) return error;
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
  update.numbers =
      arguments.Numbers(operands.Data<float>(UpdateArguments::kNumbers));
  if (is_stochastic) update.rounding = Rounding::kStochastic;
  return ToError(UpdateCpu(update, Threads(pool)));
}

auto Bind() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(kCheckGradients, CheckGradients,
                       Bind().Attr<bool>("sums_squares"));
XLA_FFI_DEFINE_HANDLER(kUnscaleGradients, UnscaleGradients, Bind());
XLA_FFI_DEFINE_HANDLER(kFollowWeights, FollowWeights,
                       Bind().Attr<bool>("is_stochastic"));
XLA_FFI_DEFINE_HANDLER(kCastMasters, CastMasters, Bind().Attr<bool>("is_stochastic"));
XLA_FFI_DEFINE_HANDLER(kUpdateVariables, UpdateVariables,
                       Bind()
                           .Attr<std::int64_t>("rule")
                           .Attr<bool>("is_stochastic")
                           .Attr<ffi::Span<const std::int64_t>>("weight_of")
                           .Attr<ffi::Span<const std::int64_t>>("decays"));

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCheckGradientsCall, "Host",
                         kCheckGradients);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUnscaleGradientsCall, "Host",
                         kUnscaleGradients);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kFollowWeightsCall, "Host",
                         kFollowWeights);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kCastMastersCall, "Host", kCastMasters);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kUpdateVariablesCall, "Host",
                         kUpdateVariables);

}  // namespace
}  // namespace keras_mp
