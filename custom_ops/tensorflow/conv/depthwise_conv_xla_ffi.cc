// The XLA FFI handlers of the depthwise convolution on a CPU: functions that XLA calls
// with buffers.

#include <cstdint>
#include <utility>

#include "common/xla_ffi.h"
#include "common/xla_ffi_buffers.h"
#include "common/xla_threads.h"
#include "conv/arguments.h"
#include "conv/xla_call_names.h"
#include "keras_mp/depthwise_conv_cpu.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

using Integers = ffi::Span<const std::int64_t>;

bool Is16Bit(ffi::DataType type) { return type == ffi::F16 || type == ffi::BF16; }

// Whether a buffer has the type of x, or FP32.
bool HasTypeOf(const ffi::AnyBuffer& x, const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == x.element_type() || buffer.element_type() == ffi::F32;
}

ConvAttributes MakeAttributes(Integers strides, Integers dilations, bool is_same) {
  return {{strides.begin(), strides.end()},
          {dilations.begin(), dilations.end()},
          is_same};
}

// Makes `conv` of the buffers; whether they fit together.
bool MakeConv(const ffi::AnyBuffer& x, const ffi::AnyBuffer& kernel,
              const ffi::AnyBuffer& y, const ConvAttributes& attributes,
              DepthwiseConv* conv) {
  // Both were checked before: that x has 16 bits, and that the kernel has them or 32.
  const auto type = x.element_type() == ffi::F16 ? tensorflow::DT_HALF
                                                 : tensorflow::DT_BFLOAT16;
  conv->kernel_type = TypeOf(kernel);
  return IsPairOfCounts(attributes.strides) && IsPairOfCounts(attributes.dilations) &&
         MakeDepthwiseConv(ShapeOf(x), ShapeOf(kernel), attributes, type, conv).ok() &&
         CheckGradYShape(*conv, ShapeOf(y)).ok();
}

ffi::Error RunDepthwiseConv(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                            ffi::RemainingArgs biases, ffi::Result<ffi::AnyBuffer> y,
                            Integers strides, Integers dilations, bool is_same) {
  DepthwiseConv conv;
  bool fits = Is16Bit(x.element_type()) && HasTypeOf(x, kernel) && HasTypeOf(x, *y) &&
              biases.size() <= 1 &&
              MakeConv(x, kernel, *y, MakeAttributes(strides, dilations, is_same), &conv);
  const void* bias = nullptr;
  DataType bias_type = DataType::kFloat;
  if (fits && biases.size() == 1) {
    const ffi::AnyBuffer given = *biases.get<ffi::AnyBuffer>(0);
    fits = HasTypeOf(x, given) && CheckBias(conv, {ShapeOf(given)}).ok();
    bias = given.untyped_data();
    bias_type = TypeOf(given);
  }
  if (!fits) return Misfit(kDepthwiseConvCall);
  return ToError(DepthwiseConvCpu(conv, x.untyped_data(), kernel.untyped_data(), bias,
                                  bias_type, y->untyped_data(), TypeOf(*y),
                                  XlaThreads(pool)));
}

ffi::Error RunDepthwiseConvGradX(ffi::ThreadPool pool, ffi::AnyBuffer kernel,
                                 ffi::AnyBuffer grad_y,
                                 ffi::Result<ffi::AnyBuffer> grad_x, Integers strides,
                                 Integers dilations, bool is_same) {
  DepthwiseConv conv;
  if (!Is16Bit(grad_y.element_type()) || !HasTypeOf(grad_y, kernel) ||
      grad_x->element_type() != grad_y.element_type() ||
      !MakeConv(*grad_x, kernel, grad_y, MakeAttributes(strides, dilations, is_same),
                &conv)) {
    return Misfit(kDepthwiseConvGradXCall);
  }
  return ToError(DepthwiseConvGradXCpu(conv, kernel.untyped_data(), grad_y.untyped_data(),
                                       grad_x->untyped_data(), XlaThreads(pool)));
}

ffi::Error RunDepthwiseConvGradKernel(ffi::ThreadPool pool, ffi::AnyBuffer x,
                                      ffi::AnyBuffer grad_y,
                                      ffi::Result<ffi::AnyBuffer> grad_kernel,
                                      Integers strides, Integers dilations,
                                      bool is_same) {
  DepthwiseConv conv;
  if (!Is16Bit(x.element_type()) || grad_y.element_type() != x.element_type() ||
      grad_kernel->element_type() != ffi::F32 ||
      !MakeConv(x, *grad_kernel, grad_y, MakeAttributes(strides, dilations, is_same),
                &conv)) {
    return Misfit(kDepthwiseConvGradKernelCall);
  }
  return ToError(DepthwiseConvGradKernelCpu(
      conv, x.untyped_data(), grad_y.untyped_data(),
      static_cast<float*>(grad_kernel->untyped_data()), XlaThreads(pool)));
}

// Adds the result and the attributes, which all three have.
template <class Binding>
auto WithAttributes(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Ret<ffi::AnyBuffer>()
      .template Attr<Integers>("strides")
      .template Attr<Integers>("dilations")
      .template Attr<bool>("is_same");
}

auto WithTwoOperands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kDepthwiseConv, RunDepthwiseConv,
                       WithAttributes(WithTwoOperands().RemainingArgs()));
XLA_FFI_DEFINE_HANDLER(kDepthwiseConvGradX, RunDepthwiseConvGradX,
                       WithAttributes(WithTwoOperands()));
XLA_FFI_DEFINE_HANDLER(kDepthwiseConvGradKernel, RunDepthwiseConvGradKernel,
                       WithAttributes(WithTwoOperands()));

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDepthwiseConvCall, "Host", kDepthwiseConv);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDepthwiseConvGradXCall, "Host",
                         kDepthwiseConvGradX);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDepthwiseConvGradKernelCall, "Host",
                         kDepthwiseConvGradKernel);

}  // namespace
}  // namespace keras_mp
