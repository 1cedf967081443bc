// The CPU kernels of KerasMp>BatchNorm, KerasMp>BatchNormInference and their gradient:
// the functions of batch_norm_cpu.h on TensorFlow's threads.

#include "keras_mp/batch_norm_cpu.h"

#include "common/cpu_device.h"
#include "norm/batch_norm_op_kernels.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

struct CpuChannels {
  explicit CpuChannels(tensorflow::OpKernelContext* ctx) : threads(CpuThreads(ctx)) {}

  Status Normalize(const BatchNorm& norm) const { return BatchNormCpu(norm, threads); }
  Status Differentiate(const BatchNormGradient& gradient) const {
    return BatchNormGradientCpu(gradient, threads);
  }

  Parallel threads;
};

using BatchNormCpuOp = batch_norm_op::BatchNormOp<CpuChannels, /*kInference=*/false>;
using BatchNormInferenceCpuOp =
    batch_norm_op::BatchNormOp<CpuChannels, /*kInference=*/true>;

REGISTER_KERNEL_BUILDER(Name("KerasMp>BatchNorm").Device(tensorflow::DEVICE_CPU),
                        BatchNormCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>BatchNormInference").Device(tensorflow::DEVICE_CPU),
                        BatchNormInferenceCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>BatchNormGradient").Device(tensorflow::DEVICE_CPU),
                        batch_norm_op::BatchNormGradientOp<CpuChannels>);

}  // namespace
}  // namespace keras_mp
