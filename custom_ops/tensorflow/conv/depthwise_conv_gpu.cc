// The kernels of KerasMp>DepthwiseConv and its gradients for a GPU: the functions of
// depthwise_conv_cuda.h on TensorFlow's stream. Layers call TensorFlow's convolution there;
// these are for a SavedModel that was written on a CPU.

#include "common/gpu_stream.h"
#include "conv/depthwise_conv_op_kernels.h"
#include "keras_mp/depthwise_conv_cuda.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {
namespace {

class GpuConv {
 public:
  explicit GpuConv(tensorflow::OpKernelContext* ctx) : stream_(ctx) {}

  Status Convolve(const DepthwiseConv& conv, const void* x, const void* kernel,
                  const void* bias, DataType bias_type, void* y, DataType y_type) const {
    return DepthwiseConvCuda(conv, x, kernel, bias, bias_type, y, y_type, stream_.get());
  }
  Status GradX(const DepthwiseConv& conv, const void* kernel, const void* grad_y,
               void* grad_x) const {
    return DepthwiseConvGradXCuda(conv, kernel, grad_y, grad_x, stream_.get());
  }
  Status GradKernel(const DepthwiseConv& conv, const void* x, const void* grad_y,
                    float* grad_kernel) const {
    return stream_.WithWorkspace(
        DepthwiseConvGradKernelWorkspaceBytes(conv), [&](void* workspace, void* stream) {
          return DepthwiseConvGradKernelCuda(conv, x, grad_y, grad_kernel, workspace,
                                             stream);
        });
  }

 private:
  GpuStream stream_;
};

#define KERAS_MP_REGISTER(name)                                                  \
  REGISTER_KERNEL_BUILDER(Name("KerasMp>" #name).Device(tensorflow::DEVICE_GPU), \
                          depthwise_conv_op::name##Op<GpuConv>)

KERAS_MP_REGISTER(DepthwiseConv);
KERAS_MP_REGISTER(DepthwiseConvGradX);
KERAS_MP_REGISTER(DepthwiseConvGradKernel);

#undef KERAS_MP_REGISTER

}  // namespace
}  // namespace keras_mp
