// Tests of row_norm_cuda.h, softmax_cuda.h, sum_cuda.h, batch_norm_cuda.h and
// depthwise_conv_cuda.h on the first CUDA device. Without one it exits with 77, which
// ctest counts as skipped.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/batch_norm_suite.h"
#include "common/depthwise_conv_suite.h"
#include "common/row_norm_suite.h"
#include "common/softmax_suite.h"
#include "common/sum_suite.h"
#include "keras_mp/batch_norm_cuda.h"
#include "keras_mp/depthwise_conv_cuda.h"
#include "keras_mp/row_norm_cuda.h"
#include "keras_mp/softmax_cuda.h"
#include "keras_mp/sum_cuda.h"

namespace keras_mp {
namespace {

void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);  // after an error in a kernel every later call fails
}

std::size_t BytesOf(DataType type) { return type == DataType::kFloat ? 4 : 2; }

// Copies of arrays of the host in the memory of the device. Those that the device may
// write are copied back at the end.
class DeviceArrays {
 public:
  ~DeviceArrays() {
    CheckCuda(cudaDeviceSynchronize());
    for (const Copy& copy : copies_) {
      if (copy.to != nullptr) {
        CheckCuda(cudaMemcpy(copy.to, copy.device, copy.bytes, cudaMemcpyDeviceToHost));
      }
      CheckCuda(cudaFree(copy.device));
    }
  }

  // Null where the array is. A negative count is the test of an error.
  template <class Pointer>
  void Read(Pointer*& array, std::int64_t count, std::size_t bytes) {
    array = static_cast<Pointer*>(Add(array, nullptr, count, bytes));
  }
  template <class Pointer>
  void Write(Pointer*& array, std::int64_t count, std::size_t bytes) {
    array = static_cast<Pointer*>(Add(array, array, count, bytes));
  }

  void* Workspace(std::size_t bytes) {
    void* device = nullptr;
    CheckCuda(cudaMalloc(&device, bytes + 1));
    copies_.push_back({device, nullptr, 0});
    return device;
  }

 private:
  struct Copy {
    void* device;
    void* to;
    std::size_t bytes;
  };

  void* Add(const void* from, void* to, std::int64_t count, std::size_t bytes) {
    if (from == nullptr || count < 0) return nullptr;
    const std::size_t size = static_cast<std::size_t>(count) * bytes;
    void* device = nullptr;
    CheckCuda(cudaMalloc(&device, size + 1));
    CheckCuda(cudaMemcpy(device, from, size, cudaMemcpyHostToDevice));
    copies_.push_back({device, to, size});
    return device;
  }

  std::vector<Copy> copies_;
};

class CudaDevice {
 public:
  const char* Name() const { return "CUDA"; }

  Status Normalize(RowNorm norm) {
    DeviceArrays arrays;
    const std::int64_t count = norm.rows * norm.size;
    arrays.Read(norm.x, count, 2);
    arrays.Read(norm.gamma, norm.size, 4);
    arrays.Read(norm.beta, norm.size, 4);
    arrays.Write(norm.y, count, 2);
    return RowNormCuda(norm, nullptr);
  }
  Status Differentiate(RowNormGradient gradient) {
    DeviceArrays arrays;
    const std::int64_t count = gradient.rows * gradient.size;
    arrays.Read(gradient.x, count, 2);
    arrays.Read(gradient.grad_y, count, 2);
    arrays.Read(gradient.gamma, gradient.size, 4);
    arrays.Write(gradient.grad_x, count, 2);
    arrays.Write(gradient.grad_gamma, gradient.size, 4);
    arrays.Write(gradient.grad_beta, gradient.size, 4);
    void* workspace = arrays.Workspace(RowNormGradientWorkspaceBytes(gradient));
    return RowNormGradientCuda(gradient, workspace, nullptr);
  }

  Status Normalize(Softmax softmax) {
    DeviceArrays arrays;
    const std::int64_t count = softmax.rows * softmax.size;
    arrays.Read(softmax.x, count, softmax.is_x_float ? 4 : 2);
    arrays.Write(softmax.y, count, 2);
    return SoftmaxCuda(softmax, nullptr);
  }
  Status Differentiate(SoftmaxGradient gradient) {
    DeviceArrays arrays;
    const std::int64_t count = gradient.rows * gradient.size;
    arrays.Read(gradient.x, count, 2);
    arrays.Read(gradient.grad_y, count, 2);
    arrays.Write(gradient.grad_x, count, 2);
    return SoftmaxGradientCuda(gradient, nullptr);
  }
  Status Differentiate(FloatSoftmaxGradient gradient) {
    DeviceArrays arrays;
    const std::int64_t count = gradient.rows * gradient.size;
    arrays.Read(gradient.y, count, 2);
    arrays.Read(gradient.grad_y, count, 2);
    arrays.Write(gradient.grad_x, count, 4);
    return FloatSoftmaxGradientCuda(gradient, nullptr);
  }

  Status Add(Sum sum) {
    DeviceArrays arrays;
    arrays.Read(sum.x, sum.outer * sum.count * sum.inner, 2);
    arrays.Write(sum.y, sum.outer * sum.inner, 4);
    const bool is_valid = sum.outer >= 0 && sum.count >= 0 && sum.inner >= 0;
    void* workspace = arrays.Workspace(is_valid ? SumWorkspaceBytes(sum) : 0);
    return SumCuda(sum, workspace, nullptr);
  }

  Status Normalize(BatchNorm norm) {
    DeviceArrays arrays;
    const std::int64_t channels = norm.shape.channels, count = SizeOf(norm.shape);
    arrays.Read(norm.x, count, 2);
    arrays.Read(norm.gamma, channels, 4);
    arrays.Read(norm.beta, channels, 4);
    arrays.Write(norm.y, count, 2);
    arrays.Write(norm.mean, channels, 4);
    arrays.Write(norm.variance, channels, 4);
    void* workspace = arrays.Workspace(count < 0 ? 0 : BatchNormWorkspaceBytes(norm));
    return BatchNormCuda(norm, workspace, nullptr);
  }
  Status Differentiate(BatchNormGradient gradient) {
    DeviceArrays arrays;
    const std::int64_t channels = gradient.shape.channels, count = SizeOf(gradient.shape);
    arrays.Read(gradient.x, count, 2);
    arrays.Read(gradient.grad_y, count, 2);
    arrays.Read(gradient.gamma, channels, 4);
    arrays.Read(gradient.mean, channels, 4);
    arrays.Read(gradient.variance, channels, 4);
    arrays.Write(gradient.grad_x, count, 2);
    arrays.Write(gradient.grad_gamma, channels, 4);
    arrays.Write(gradient.grad_beta, channels, 4);
    void* workspace = arrays.Workspace(BatchNormGradientWorkspaceBytes(gradient));
    return BatchNormGradientCuda(gradient, workspace, nullptr);
  }

  Status Convolve(const DepthwiseConv& conv, const void* x, const void* kernel,
                  const void* bias, DataType bias_type, void* y, DataType y_type) {
    DeviceArrays arrays;
    arrays.Read(x, SizeOfX(conv), 2);
    arrays.Read(kernel, SizeOfKernel(conv), BytesOf(conv.kernel_type));
    arrays.Read(bias, conv.channels, BytesOf(bias_type));
    arrays.Write(y, SizeOfY(conv), BytesOf(y_type));
    return DepthwiseConvCuda(conv, x, kernel, bias, bias_type, y, y_type, nullptr);
  }
  Status GradX(const DepthwiseConv& conv, const void* kernel, const void* grad_y,
               void* grad_x) {
    DeviceArrays arrays;
    arrays.Read(kernel, SizeOfKernel(conv), BytesOf(conv.kernel_type));
    arrays.Read(grad_y, SizeOfY(conv), 2);
    arrays.Write(grad_x, SizeOfX(conv), 2);
    return DepthwiseConvGradXCuda(conv, kernel, grad_y, grad_x, nullptr);
  }
  Status GradKernel(const DepthwiseConv& conv, const void* x, const void* grad_y,
                    float* grad_kernel) {
    DeviceArrays arrays;
    arrays.Read(x, SizeOfX(conv), 2);
    arrays.Read(grad_y, SizeOfY(conv), 2);
    arrays.Write(grad_kernel, SizeOfKernel(conv), 4);
    void* workspace = arrays.Workspace(DepthwiseConvGradKernelWorkspaceBytes(conv));
    return DepthwiseConvGradKernelCuda(conv, x, grad_y, grad_kernel, workspace, nullptr);
  }

 private:
  static std::int64_t SizeOf(const ChannelShape& shape) {
    return shape.outer * shape.channels * shape.inner;
  }
  static std::int64_t SizeOfX(const DepthwiseConv& conv) {
    return conv.batch * conv.dimensions[0].size * conv.dimensions[1].size * conv.channels;
  }
  static std::int64_t SizeOfY(const DepthwiseConv& conv) {
    return conv.batch * conv.dimensions[0].result * conv.dimensions[1].result *
           conv.channels;
  }
  static std::int64_t SizeOfKernel(const DepthwiseConv& conv) {
    return conv.dimensions[0].kernel * conv.dimensions[1].kernel * conv.channels;
  }
};

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU\n");
    return 77;
  }
  CudaDevice device;
  // The registers of a warp hold rows of up to 1024 elements, those of a block 8192.
  row_norm::TestAll(device, {1, 7, 16, 64, 111, 217, 1024, 1025, 8192, 8193});
  softmax::TestAll(device, {1, 7, 16, 64, 217, 1024, 1025, 8192, 8193}, 100'000);
  sum::TestAll(device, {0, 1, 7, 17, 256, 257, 989}, 1 << 25);
  batch_norm::TestAll(device, {1, 7, 16, 17, 64, 111, 217}, {1, 2, 7, 64, 257, 1040},
                      200'000);
  depthwise_conv::TestAll(device, {1, 7, 17, 33, 64, 100});
  return Report();
}
