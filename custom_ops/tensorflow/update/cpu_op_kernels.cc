// The ops of the update step on a CPU: update_cpu.h on TensorFlow's threads.

#include "common/cpu_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "update/cpu_backend.h"
#include "update/op_kernel_templates.h"

namespace keras_mp {
namespace {

struct CpuDevice : UpdateOnCpu {
  explicit CpuDevice(tensorflow::OpKernelContext* ctx) : UpdateOnCpu(CpuThreads(ctx)) {}
};

#define KERAS_MP_REGISTER(name)                                                  \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device(tensorflow::DEVICE_CPU), \
                          update_op::name##Op<CpuDevice>)

KERAS_MP_REGISTER(CheckGradients);
KERAS_MP_REGISTER(UnscaleGradients);
KERAS_MP_REGISTER(FollowWeights);
KERAS_MP_REGISTER(CastMasters);
KERAS_MP_REGISTER(UpdateVariables);

#undef KERAS_MP_REGISTER

}  // namespace
}  // namespace keras_mp
