// The CPU kernels of KerasMp>Softmax, KerasMp>FloatSoftmax, KerasMp>RowNorm and their
// gradients: the functions of softmax_cpu.h and row_norm_cpu.h on TensorFlow's threads.

#include "common/cpu_device.h"
#include "keras_mp/row_norm_cpu.h"
#include "keras_mp/softmax_cpu.h"
#include "norm/row_op_kernels.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

struct CpuRows {
  explicit CpuRows(tensorflow::OpKernelContext* ctx) : threads(CpuThreads(ctx)) {}

  Status Normalize(const Softmax& softmax) const { return SoftmaxCpu(softmax, threads); }
  Status Normalize(const RowNorm& norm) const { return RowNormCpu(norm, threads); }
  Status Differentiate(const SoftmaxGradient& gradient) const {
    return SoftmaxGradientCpu(gradient, threads);
  }
  Status Differentiate(const FloatSoftmaxGradient& gradient) const {
    return FloatSoftmaxGradientCpu(gradient, threads);
  }
  Status Differentiate(const RowNormGradient& gradient) const {
    return RowNormGradientCpu(gradient, threads);
  }

  Parallel threads;
};

#define KERAS_MP_REGISTER(name, kernel)                                          \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device(tensorflow::DEVICE_CPU), \
                          row_op::kernel<CpuRows>)

KERAS_MP_REGISTER(Softmax, SoftmaxOp);
KERAS_MP_REGISTER(SoftmaxGradient, SoftmaxGradientOp);
KERAS_MP_REGISTER(FloatSoftmax, SoftmaxOp);
KERAS_MP_REGISTER(FloatSoftmaxGradient, FloatSoftmaxGradientOp);
KERAS_MP_REGISTER(RowNorm, RowNormOp);
KERAS_MP_REGISTER(RowNormGradient, RowNormGradientOp);

#undef KERAS_MP_REGISTER

}  // namespace
}  // namespace keras_mp
