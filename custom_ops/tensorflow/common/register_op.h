// Registers an op's class for a device: its OpKernel, its XlaOpKernel and the handler of
// its XLA call.

#ifndef KERAS_MP_TENSORFLOW_COMMON_REGISTER_OP_H_
#define KERAS_MP_TENSORFLOW_COMMON_REGISTER_OP_H_

#include "common/handler_of.h"
#include "common/register_kernel.h"
#include "common/xla_op_kernel_of.h"

namespace keras_mp {

template <class Op, class Device, class XlaKernel = XlaOpKernelOf<Op>>
bool RegisterCall() {
  // Not REGISTER_XLA_OP, which has no effect after the first op has run.
  tensorflow::KernelDefBuilder builder(Op::kName);
  builder.Device(Device::kXlaKernel);
  Register<XlaKernel>(Op::kName, builder);
  return xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), Op::kCall,
                                              Device::kHandler,
                                              HandlerOf<Op, Device>) == nullptr;
}

template <class Op, class Device, class XlaKernel = XlaOpKernelOf<Op>>
bool RegisterOp() {
  return RegisterKernel<Op, Device>() && RegisterCall<Op, Device, XlaKernel>();
}

}  // namespace keras_mp

#define KERAS_MP_REGISTER(Op, Device) \
  [[maybe_unused]] const bool is_##Op##_registered_on_##Device = RegisterOp<Op, Device>()

#ifdef KERAS_MP_HAS_CUDA
#define KERAS_MP_REGISTER_ON_GPU(Op) KERAS_MP_REGISTER(Op, GpuDevice)
#else
#define KERAS_MP_REGISTER_ON_GPU(Op) static_assert(true)
#endif

#endif  // KERAS_MP_TENSORFLOW_COMMON_REGISTER_OP_H_
