// Tests of the kernels of cuda/conv, run thread by thread on the host. They need neither a
// GPU nor CUDA.

#include <vector>

#include "cuda/emulator.h"
// After the emulator, whose definitions it uses.
#include "cuda/conv/launch.h"
#include "common/depthwise_conv_suite.h"
#include "cuda/host_launcher.h"

namespace keras_mp {
namespace {

class Emulated {
 public:
  const char* Name() const { return "emulated"; }

  Status Convolve(const DepthwiseConv& conv, const void* x, const void* kernel,
                  const void* bias, DataType bias_type, void* y, DataType y_type) {
    const Status status = CheckConv(conv, bias_type, y_type);
    if (!status.ok()) return status;
    cuda::LaunchDepthwiseConv({conv, x, kernel, bias, bias_type, y, y_type}, launcher_);
    return {};
  }
  Status GradX(const DepthwiseConv& conv, const void* kernel, const void* grad_y,
               void* grad_x) {
    cuda::LaunchDepthwiseConvGradX(
        {conv, grad_y, kernel, nullptr, DataType::kFloat, grad_x, conv.type}, launcher_);
    return {};
  }
  Status GradKernel(const DepthwiseConv& conv, const void* x, const void* grad_y,
                    float* grad_kernel) {
    std::vector<float> workspace(cuda::WorkspaceFloats(conv));
    cuda::LaunchDepthwiseConvGradKernel(conv, x, grad_y, grad_kernel, workspace.data(),
                                        launcher_);
    return {};
  }

 private:
  cuda::HostLauncher<cuda::kBlock> launcher_;
};

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  Emulated emulated;
  depthwise_conv::TestAll(emulated, {1, 7, 64});
  return Report();
}
