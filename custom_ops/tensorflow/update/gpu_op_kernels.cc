// Registers the kernels of the update ops for a GPU: update_cuda.h on TensorFlow's
// stream.

#include <cstddef>
#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"
#include "update/cuda_backend.h"
#include "update/op_kernel_templates.h"
#include "xla/stream_executor/stream.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelContext;

struct GpuOpBackend : CudaBackend {
  explicit GpuOpBackend(OpKernelContext* ctx)
      : CudaBackend(
            ctx->op_device_context()->stream()->platform_specific_handle().stream,
            // The allocator returns the memory to other ops once the backend is
            // destroyed. Its work is on the stream by then, before theirs.
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
                        update_op::CheckGradientsOp<GpuOpBackend>);
REGISTER_KERNEL_BUILDER(KERAS_MP_GPU(UnscaleGradients),
                        update_op::UnscaleGradientsOp<GpuOpBackend>);
// The handles of variables are in host memory.
REGISTER_KERNEL_BUILDER(
    KERAS_MP_GPU(SyncMastersFromWeights).HostMemory("masters").HostMemory("weights"),
    update_op::SyncMastersFromWeightsOp<GpuOpBackend>);
REGISTER_KERNEL_BUILDER(
    KERAS_MP_GPU(CastMasters).HostMemory("masters").HostMemory("weights"),
    update_op::CastMastersOp<GpuOpBackend>);
REGISTER_KERNEL_BUILDER(KERAS_MP_GPU(UpdateVariables)
                            .HostMemory("masters")
                            .HostMemory("slots")
                            .HostMemory("weights")
                            .HostMemory("exponents"),
                        update_op::UpdateVariablesOp<GpuOpBackend>);

#undef KERAS_MP_GPU

}  // namespace
}  // namespace keras_mp
