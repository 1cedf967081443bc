// Registers the OpKernel of an op's class for a device.

#ifndef KERAS_MP_TENSORFLOW_COMMON_REGISTER_KERNEL_H_
#define KERAS_MP_TENSORFLOW_COMMON_REGISTER_KERNEL_H_

#include "common/cpu_device.h"
#include "common/op_hooks.h"
#include "common/op_kernel_of.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef KERAS_MP_HAS_CUDA
#include "common/gpu_device.h"
#endif

namespace keras_mp {

// As REGISTER_KERNEL_BUILDER, which takes no parameter of a template.
template <class Kernel>
void Register(const char* op, tensorflow::KernelDefBuilder& builder) {
  tensorflow::kernel_factory::OpKernelRegistrar(
      builder.Build(), op,
      [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
        return new Kernel(ctx);
      });
}

template <class Op, class Device>
bool RegisterKernel() {
  tensorflow::KernelDefBuilder builder(Op::kName);
  builder.Device(Device::kKernel);
  for (const char* input : Op::HostInputs()) builder.HostMemory(input);
  Register<OpKernelOf<Op, Device>>(Op::kName, builder);
  return true;
}

}  // namespace keras_mp

#define KERAS_MP_REGISTER_KERNEL(Op, Device) \
  [[maybe_unused]] const bool is_##Op##_registered_on_##Device = \
      RegisterKernel<Op, Device>()

#endif  // KERAS_MP_TENSORFLOW_COMMON_REGISTER_KERNEL_H_
