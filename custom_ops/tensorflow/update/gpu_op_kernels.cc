// The ops of the update step on a GPU: update_cuda.h on TensorFlow's stream.

#include <cstddef>
#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"
#include "update/cuda_backend.h"
#include "update/op_kernel_templates.h"
#include "xla/stream_executor/stream.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelContext;

struct GpuDevice : UpdateOnCuda {
  explicit GpuDevice(OpKernelContext* ctx)
      : UpdateOnCuda(
            ctx->op_device_context()->stream()->platform_specific_handle().stream,
            // The memory is kept until the device goes, when its work is on the stream:
            // whoever gets it next, puts theirs behind.
            [ctx, workspace = tensorflow::Tensor()](std::size_t bytes) mutable -> void* {
              const auto size = static_cast<std::int64_t>(bytes);
              if (!ctx->allocate_temp(tensorflow::DT_INT8, {size}, &workspace).ok()) {
                return nullptr;
              }
              return workspace.data();
            }) {}
};

#define KERAS_MP_GPU(name) Name("KerasMp>" #name).Device(tensorflow::DEVICE_GPU)

REGISTER_KERNEL_BUILDER(KERAS_MP_GPU(CheckGradients),
                        update_op::CheckGradientsOp<GpuDevice>);
REGISTER_KERNEL_BUILDER(KERAS_MP_GPU(UnscaleGradients),
                        update_op::UnscaleGradientsOp<GpuDevice>);
// The handles of variables are of the host.
REGISTER_KERNEL_BUILDER(
    KERAS_MP_GPU(FollowWeights).HostMemory("masters").HostMemory("weights"),
    update_op::FollowWeightsOp<GpuDevice>);
REGISTER_KERNEL_BUILDER(
    KERAS_MP_GPU(CastMasters).HostMemory("masters").HostMemory("weights"),
    update_op::CastMastersOp<GpuDevice>);
REGISTER_KERNEL_BUILDER(KERAS_MP_GPU(UpdateVariables)
                            .HostMemory("masters")
                            .HostMemory("slots")
                            .HostMemory("weights"),
                        update_op::UpdateVariablesOp<GpuDevice>);

#undef KERAS_MP_GPU

}  // namespace
}  // namespace keras_mp
