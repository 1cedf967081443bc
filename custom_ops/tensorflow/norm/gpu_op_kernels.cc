// The kernels of the ops of this folder for a GPU: the functions of softmax_cuda.h,
// row_norm_cuda.h, sum_cuda.h and batch_norm_cuda.h on TensorFlow's stream. No GPU has
// measured them yet: they are registered where KERAS_MP_GPU_REDUCTIONS is `kernels` when
// the library is loaded. TensorFlow places the ops on the CPU elsewhere.

#include <cstdlib>
#include <string>

#include "common/gpu_stream.h"
#include "keras_mp/batch_norm_cuda.h"
#include "keras_mp/row_norm_cuda.h"
#include "keras_mp/softmax_cuda.h"
#include "keras_mp/sum_cuda.h"
#include "norm/batch_norm_op_kernels.h"
#include "norm/row_op_kernels.h"
#include "norm/sum_op_kernel.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

class GpuReductions {
 public:
  explicit GpuReductions(tensorflow::OpKernelContext* ctx) : stream_(ctx) {}

  Status Normalize(const Softmax& softmax) const {
    return SoftmaxCuda(softmax, stream_.get());
  }
  Status Normalize(const RowNorm& norm) const { return RowNormCuda(norm, stream_.get()); }
  Status Normalize(const BatchNorm& norm) const {
    return stream_.WithWorkspace(
        BatchNormWorkspaceBytes(norm), [&](void* workspace, void* stream) {
          return BatchNormCuda(norm, workspace, stream);
        });
  }
  Status Differentiate(const SoftmaxGradient& gradient) const {
    return SoftmaxGradientCuda(gradient, stream_.get());
  }
  Status Differentiate(const FloatSoftmaxGradient& gradient) const {
    return FloatSoftmaxGradientCuda(gradient, stream_.get());
  }
  Status Differentiate(const RowNormGradient& gradient) const {
    return stream_.WithWorkspace(
        RowNormGradientWorkspaceBytes(gradient), [&](void* workspace, void* stream) {
          return RowNormGradientCuda(gradient, workspace, stream);
        });
  }
  Status Differentiate(const BatchNormGradient& gradient) const {
    return stream_.WithWorkspace(
        BatchNormGradientWorkspaceBytes(gradient), [&](void* workspace, void* stream) {
          return BatchNormGradientCuda(gradient, workspace, stream);
        });
  }
  Status Add(const Sum& sum) const {
    return stream_.WithWorkspace(SumWorkspaceBytes(sum),
                                 [&](void* workspace, void* stream) {
                                   return SumCuda(sum, workspace, stream);
                                 });
  }

 private:
  GpuStream stream_;
};

// As REGISTER_KERNEL_BUILDER, but when it is called.
template <class Kernel>
void RegisterOnGpu(const char* op) {
  const auto make = [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
    return new Kernel(ctx);
  };
  tensorflow::kernel_factory::OpKernelRegistrar(
      tensorflow::register_kernel::Name(op).Device(tensorflow::DEVICE_GPU).Build(), op,
      make);
}

bool AreChosen() {
  const char* chosen = std::getenv("KERAS_MP_GPU_REDUCTIONS");
  return chosen != nullptr && std::string(chosen) == "kernels";
}

[[maybe_unused]] const bool are_registered = [] {
  if (!AreChosen()) return false;
  using Gpu = GpuReductions;
  RegisterOnGpu<row_op::SoftmaxOp<Gpu>>("KerasMp>Softmax");
  RegisterOnGpu<row_op::SoftmaxGradientOp<Gpu>>("KerasMp>SoftmaxGradient");
  RegisterOnGpu<row_op::SoftmaxOp<Gpu>>("KerasMp>FloatSoftmax");
  RegisterOnGpu<row_op::FloatSoftmaxGradientOp<Gpu>>("KerasMp>FloatSoftmaxGradient");
  RegisterOnGpu<row_op::RowNormOp<Gpu>>("KerasMp>RowNorm");
  RegisterOnGpu<row_op::RowNormGradientOp<Gpu>>("KerasMp>RowNormGradient");
  RegisterOnGpu<SumOp<Gpu>>("KerasMp>Sum");
  RegisterOnGpu<batch_norm_op::BatchNormOp<Gpu, false>>("KerasMp>BatchNorm");
  RegisterOnGpu<batch_norm_op::BatchNormOp<Gpu, true>>("KerasMp>BatchNormInference");
  RegisterOnGpu<batch_norm_op::BatchNormGradientOp<Gpu>>("KerasMp>BatchNormGradient");
  return true;
}();

}  // namespace
}  // namespace keras_mp
