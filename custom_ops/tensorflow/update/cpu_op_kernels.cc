// Registers the kernels of the update ops for a CPU: update_cpu.h on TensorFlow's
// threads.

#include "common/cpu_device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "update/cpu_backend.h"
#include "update/op_kernel_templates.h"

namespace keras_mp {
namespace {

struct CpuOpBackend : CpuBackend {
  explicit CpuOpBackend(tensorflow::OpKernelContext* ctx) : CpuBackend(CpuThreads(ctx)) {}
};

#define KERAS_MP_REGISTER(name)                                                  \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device(tensorflow::DEVICE_CPU), \
                          update_op::name##Op<CpuOpBackend>)

KERAS_MP_REGISTER(CheckGradients);
KERAS_MP_REGISTER(UnscaleGradients);
KERAS_MP_REGISTER(SyncMastersFromWeights);
KERAS_MP_REGISTER(CastMasters);
KERAS_MP_REGISTER(UpdateVariables);

#undef KERAS_MP_REGISTER

}  // namespace
}  // namespace keras_mp
