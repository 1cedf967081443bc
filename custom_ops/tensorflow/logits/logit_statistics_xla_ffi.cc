// The XLA FFI handlers of logits on a CPU: functions that XLA calls with buffers.

#include <cstddef>
#include <cstdint>

#include "common/xla_ffi.h"
#include "common/xla_ffi_buffers.h"
#include "common/xla_threads.h"
#include "keras_mp/logit_statistics_cpu.h"
#include "logits/arguments.h"
#include "logits/xla_call_names.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

// Makes the problem of the buffers; whether they fit together.
bool Make(const ffi::AnyBuffer& inputs, const ffi::AnyBuffer& kernel,
          const ffi::AnyBuffer& targets, const ffi::RemainingArgs& biases,
          const ffi::Dictionary& given, LinearLogits* l) {
  const auto type = TensorFlowTypeOf(inputs.element_type());
  const auto transpose = given.get<bool>("transpose");
  const auto soft_cap = given.get<float>("soft_cap");
  const bool has_labels = targets.element_type() == ffi::S32;
  if (type == tensorflow::DT_INVALID ||
      (!has_labels && targets.element_type() != ffi::F32) || !transpose.has_value() ||
      !soft_cap.has_value()) {
    return false;
  }
  LogitShapes shapes = {ShapeOf(inputs), ShapeOf(kernel), ShapeOf(targets), {}};
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const ffi::AnyBuffer bias = *biases.get<ffi::AnyBuffer>(i);
    if (bias.element_type() != ffi::F32) return false;
    shapes.biases.push_back(ShapeOf(bias));
    l->bias = static_cast<const float*>(bias.untyped_data());
  }
  l->inputs = inputs.untyped_data();
  l->kernel = kernel.untyped_data();
  SetTargets(targets.untyped_data(), has_labels, l);
  return MakeLogits(shapes, has_labels, {*transpose, *soft_cap}, type,
                    TensorFlowTypeOf(kernel.element_type()), l)
      .ok();
}

// Whether a buffer has an element of the type for each row.
bool HasRows(const LinearLogits& l, ffi::DataType type, const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == type &&
         ShapeOf(buffer) == tensorflow::TensorShape({l.rows});
}

template <class Element>
Element* DataOf(const ffi::AnyBuffer& buffer) {
  return static_cast<Element*>(buffer.untyped_data());
}

ffi::Error RunLogitStatistics(ffi::ThreadPool pool, ffi::AnyBuffer inputs,
                              ffi::AnyBuffer kernel, ffi::AnyBuffer targets,
                              ffi::RemainingArgs biases,
                              ffi::Result<ffi::AnyBuffer> logsumexp,
                              ffi::Result<ffi::AnyBuffer> target,
                              ffi::Result<ffi::AnyBuffer> total,
                              ffi::Result<ffi::AnyBuffer> argmax,
                              ffi::Dictionary attributes) {
  LinearLogits l;
  if (!Make(inputs, kernel, targets, biases, attributes, &l) ||
      !HasRows(l, ffi::F32, *logsumexp) || !HasRows(l, ffi::F32, *target) ||
      !HasRows(l, ffi::F32, *total) || !HasRows(l, ffi::S32, *argmax)) {
    return Misfit(kLogitStatisticsCall);
  }
  const LogitStatistics statistics = {DataOf<float>(*logsumexp), DataOf<float>(*target),
                                      DataOf<float>(*total),
                                      DataOf<std::int32_t>(*argmax)};
  return ToError(LogitStatisticsCpu(l, statistics, XlaThreads(pool)));
}

ffi::Error RunLogitStatisticsGradient(
    ffi::ThreadPool pool, ffi::AnyBuffer inputs, ffi::AnyBuffer kernel,
    ffi::AnyBuffer targets, ffi::AnyBuffer logsumexp, ffi::AnyBuffer grad_logsumexp,
    ffi::AnyBuffer grad_target, ffi::AnyBuffer grad_total, ffi::RemainingArgs biases,
    ffi::Result<ffi::AnyBuffer> grad_inputs, ffi::Result<ffi::AnyBuffer> grad_kernel,
    ffi::RemainingRets grad_biases, ffi::Dictionary attributes) {
  const auto are_alike = [](const ffi::AnyBuffer& a, const ffi::AnyBuffer& b) {
    return a.element_type() == b.element_type() && ShapeOf(a) == ShapeOf(b);
  };
  LinearLogits l;
  bool fits = Make(inputs, kernel, targets, biases, attributes, &l) &&
              are_alike(*grad_inputs, inputs) && are_alike(*grad_kernel, kernel) &&
              grad_biases.size() == biases.size();
  for (const ffi::AnyBuffer& one : {logsumexp, grad_logsumexp, grad_target, grad_total}) {
    fits = fits && HasRows(l, ffi::F32, one);
  }
  float* grad_bias = nullptr;
  for (std::size_t i = 0; fits && i < grad_biases.size(); ++i) {
    const ffi::AnyBuffer one = **grad_biases.get<ffi::AnyBuffer>(i);
    fits = are_alike(one, *biases.get<ffi::AnyBuffer>(i));
    grad_bias = DataOf<float>(one);
  }
  if (!fits) return Misfit(kLogitStatisticsGradientCall);
  const LogitStatisticsGradient gradient = {
      DataOf<const float>(logsumexp),   DataOf<const float>(grad_logsumexp),
      DataOf<const float>(grad_target), DataOf<const float>(grad_total),
      grad_inputs->untyped_data(),      grad_kernel->untyped_data(),
      grad_bias};
  return ToError(LogitStatisticsGradientCpu(l, gradient, XlaThreads(pool)));
}

auto WithLogits() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kLogitStatistics, RunLogitStatistics,
                       WithLogits()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kLogitStatisticsGradient, RunLogitStatisticsGradient,
                       WithLogits()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attrs());

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kLogitStatisticsCall, "Host",
                         kLogitStatistics);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kLogitStatisticsGradientCall, "Host",
                         kLogitStatisticsGradient);

}  // namespace
}  // namespace keras_mp
