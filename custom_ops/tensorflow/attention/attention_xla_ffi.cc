// The XLA FFI handlers of attention on a CPU: functions that XLA calls with buffers.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/arguments.h"
#include "attention/xla_call_names.h"
#include "common/xla_ffi.h"
#include "common/xla_ffi_buffers.h"
#include "common/cpu_device.h"
#include "keras_mp/attention_cpu.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

bool HaveType(ffi::DataType type, std::initializer_list<ffi::AnyBuffer> buffers) {
  for (const ffi::AnyBuffer& buffer : buffers) {
    if (buffer.element_type() != type) return false;
  }
  return true;
}

// Reads the attributes; whether they are there. A call that an earlier version wrote has
// no dropout.
bool Read(const ffi::Dictionary& given, AttentionAttributes* attributes) {
  const auto scale = given.get<float>("scale");
  const auto is_causal = given.get<bool>("is_causal");
  if (!scale.has_value() || !is_causal.has_value()) return false;
  *attributes = {*scale, *is_causal};
  if (!given.contains("dropout")) return true;
  const auto dropout = given.get<float>("dropout");
  if (dropout.has_value()) attributes->dropout = *dropout;
  return dropout.has_value();
}

// Makes the problem of the buffers; whether they fit together. `more`: masks, and seeds.
bool Make(const ffi::AnyBuffer& query, const ffi::AnyBuffer& key,
          const ffi::AnyBuffer& value, const ffi::RemainingArgs& more,
          const ffi::Dictionary& given, Attention* a) {
  const auto type = TensorFlowTypeOf(query.element_type());
  AttentionAttributes attributes;
  if (type == tensorflow::DT_INVALID || !HaveType(query.element_type(), {key, value}) ||
      !Read(given, &attributes)) {
    return false;
  }
  std::vector<tensorflow::TensorShape> masks, seeds;
  const void* seed = nullptr;
  for (std::size_t i = 0; i < more.size(); ++i) {
    const ffi::AnyBuffer one = *more.get<ffi::AnyBuffer>(i);
    if (one.element_type() == ffi::PRED) {
      masks.push_back(ShapeOf(one));
      a->mask = static_cast<const std::uint8_t*>(one.untyped_data());
    } else if (one.element_type() == ffi::S32) {
      seeds.push_back(ShapeOf(one));
      seed = one.untyped_data();
    } else {
      return false;
    }
  }
  a->query = query.untyped_data();
  a->key = key.untyped_data();
  a->value = value.untyped_data();
  const bool fits = MakeAttention(ShapeOf(query), ShapeOf(key), ShapeOf(value), masks,
                                  seeds, attributes, type, a)
                        .ok();
  if (fits && seed != nullptr) SetSeed(seed, a);
  return fits;
}

ffi::Error RunAttention(ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer key,
                        ffi::AnyBuffer value, ffi::RemainingArgs more,
                        ffi::Result<ffi::AnyBuffer> result,
                        ffi::Result<ffi::AnyBuffer> log_sum_exp,
                        ffi::Dictionary attributes) {
  Attention a;
  if (!Make(query, key, value, more, attributes, &a) ||
      !HaveType(query.element_type(), {*result}) || !HaveType(ffi::F32, {*log_sum_exp}) ||
      !CheckResults(a, ShapeOf(*result), ShapeOf(*log_sum_exp), ShapeOf(*result)).ok()) {
    return Misfit(kAttentionCall);
  }
  const AttentionResult results = {result->untyped_data(),
                                   static_cast<float*>(log_sum_exp->untyped_data())};
  return ToError(AttentionCpu(a, results, XlaThreads(pool)));
}

ffi::Error RunAttentionGradient(
    ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer key, ffi::AnyBuffer value,
    ffi::AnyBuffer result, ffi::AnyBuffer log_sum_exp, ffi::AnyBuffer grad,
    ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> grad_query,
    ffi::Result<ffi::AnyBuffer> grad_key, ffi::Result<ffi::AnyBuffer> grad_value,
    ffi::Dictionary attributes) {
  Attention a;
  if (!Make(query, key, value, more, attributes, &a) ||
      !HaveType(query.element_type(),
                {result, grad, *grad_query, *grad_key, *grad_value}) ||
      !HaveType(ffi::F32, {log_sum_exp}) ||
      !CheckResults(a, ShapeOf(result), ShapeOf(log_sum_exp), ShapeOf(grad)).ok() ||
      ShapeOf(*grad_query) != ShapeOf(query) || ShapeOf(*grad_key) != ShapeOf(key) ||
      ShapeOf(*grad_value) != ShapeOf(value)) {
    return Misfit(kAttentionGradientCall);
  }
  const AttentionGradient gradient = {
      result.untyped_data(),    static_cast<const float*>(log_sum_exp.untyped_data()),
      grad.untyped_data(),      grad_query->untyped_data(),
      grad_key->untyped_data(), grad_value->untyped_data()};
  return ToError(AttentionGradientCpu(a, gradient, XlaThreads(pool)));
}

auto WithThreeTensors() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kAttention, RunAttention,
                       WithThreeTensors()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kAttentionGradient, RunAttentionGradient,
                       WithThreeTensors()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAttentionCall, "Host", kAttention);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAttentionGradientCall, "Host",
                         kAttentionGradient);

}  // namespace
}  // namespace keras_mp
