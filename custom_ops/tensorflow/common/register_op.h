// Registers the class of an op for a device: its OpKernel, its XlaOpKernel and the handler
// of its XLA call.

#ifndef KERAS_MP_TENSORFLOW_COMMON_REGISTER_OP_H_
#define KERAS_MP_TENSORFLOW_COMMON_REGISTER_OP_H_

#include "common/cpu_device.h"
#include "common/handler_of.h"
#include "common/op_hooks.h"
#include "common/op_kernel_of.h"
#include "common/xla_op_kernel_of.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef KERAS_MP_HAS_CUDA
#include "common/gpu_device.h"
#endif

namespace keras_mp {

// As REGISTER_KERNEL_BUILDER, which takes no parameter of a template.
template <class Kernel>
void RegisterKernel(const char* op, tensorflow::KernelDefBuilder& builder) {
  tensorflow::kernel_factory::OpKernelRegistrar(
      builder.Build(), op,
      [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
        return new Kernel(ctx);
      });
}

template <class Op, class Device>
bool RegisterOp() {
  tensorflow::KernelDefBuilder kernel(Op::kName), xla_kernel(Op::kName);
  kernel.Device(Device::kKernel);
  for (const char* input : Op::HostInputs()) kernel.HostMemory(input);
  RegisterKernel<OpKernelOf<Op, Device>>(Op::kName, kernel);
  // Not REGISTER_XLA_OP, which has no effect after the first op has run.
  xla_kernel.Device(Device::kXlaKernel);
  RegisterKernel<XlaOpKernelOf<Op>>(Op::kName, xla_kernel);
  return xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), Op::kCall,
                                              Device::kHandler,
                                              HandlerOf<Op, Device>) == nullptr;
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
