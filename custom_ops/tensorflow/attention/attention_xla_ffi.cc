// The XLA FFI handlers of attention on a CPU: functions that XLA calls with buffers.

#include <cstdint>
#include <utility>
#include <vector>

#include "attention/arguments.h"
#include "attention/xla_call_names.h"
#include "common/xla_ffi.h"
#include "common/xla_ffi_buffers.h"
#include "common/xla_threads.h"
#include "keras_mp/attention_cpu.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

tensorflow::DataType TensorFlowTypeOf(ffi::DataType type) {
  if (type == ffi::F16) return tensorflow::DT_HALF;
  if (type == ffi::BF16) return tensorflow::DT_BFLOAT16;
  return type == ffi::F32 ? tensorflow::DT_FLOAT : tensorflow::DT_INVALID;
}

bool HaveType(ffi::DataType type, std::initializer_list<ffi::AnyBuffer> buffers) {
  for (const ffi::AnyBuffer& buffer : buffers) {
    if (buffer.element_type() != type) return false;
  }
  return true;
}

// Makes the problem of the buffers; whether they fit together.
bool Make(const ffi::AnyBuffer& query, const ffi::AnyBuffer& key,
          const ffi::AnyBuffer& value, const ffi::RemainingArgs& masks,
          const AttentionAttributes& attributes, Attention* a) {
  const auto type = TensorFlowTypeOf(query.element_type());
  if (type == tensorflow::DT_INVALID || masks.size() > 1 ||
      !HaveType(query.element_type(), {key, value})) {
    return false;
  }
  std::vector<tensorflow::TensorShape> shapes;
  if (masks.size() == 1) {
    const ffi::AnyBuffer mask = *masks.get<ffi::AnyBuffer>(0);
    if (mask.element_type() != ffi::PRED) return false;
    shapes.push_back(ShapeOf(mask));
    a->mask = static_cast<const std::uint8_t*>(mask.untyped_data());
  }
  a->query = query.untyped_data();
  a->key = key.untyped_data();
  a->value = value.untyped_data();
  return MakeAttention(ShapeOf(query), ShapeOf(key), ShapeOf(value), shapes, attributes,
                       type, a)
      .ok();
}

ffi::Error RunAttention(ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer key,
                        ffi::AnyBuffer value, ffi::RemainingArgs masks,
                        ffi::Result<ffi::AnyBuffer> result,
                        ffi::Result<ffi::AnyBuffer> log_sum_exp, float scale,
                        bool is_causal) {
  Attention a;
  if (!Make(query, key, value, masks, {scale, is_causal}, &a) ||
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
    ffi::RemainingArgs masks, ffi::Result<ffi::AnyBuffer> grad_query,
    ffi::Result<ffi::AnyBuffer> grad_key, ffi::Result<ffi::AnyBuffer> grad_value,
    float scale, bool is_causal) {
  Attention a;
  if (!Make(query, key, value, masks, {scale, is_causal}, &a) ||
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

// Adds the attributes, which both have.
template <class Binding>
auto WithAttentionAttributes(Binding&& binding) {
  return std::forward<Binding>(binding).template Attr<float>("scale").template Attr<bool>(
      "is_causal");
}

auto WithThreeTensors() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kAttention, RunAttention,
                       WithAttentionAttributes(WithThreeTensors()
                                          .RemainingArgs()
                                          .Ret<ffi::AnyBuffer>()
                                          .Ret<ffi::AnyBuffer>()));
XLA_FFI_DEFINE_HANDLER(kAttentionGradient, RunAttentionGradient,
                       WithAttentionAttributes(WithThreeTensors()
                                          .Arg<ffi::AnyBuffer>()
                                          .Arg<ffi::AnyBuffer>()
                                          .Arg<ffi::AnyBuffer>()
                                          .RemainingArgs()
                                          .Ret<ffi::AnyBuffer>()
                                          .Ret<ffi::AnyBuffer>()
                                          .Ret<ffi::AnyBuffer>()));

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAttentionCall, "Host", kAttention);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAttentionGradientCall, "Host",
                         kAttentionGradient);

}  // namespace
}  // namespace keras_mp
