// Tests of the kernels of cuda/norm, run thread by thread on the host. They need neither a
// GPU nor CUDA.

#include <vector>

#include "cuda/emulator.h"
// After the emulator, whose definitions it uses.
#include "cuda/norm/batch_norm_launch.h"
#include "cuda/norm/launch.h"
#include "common/batch_norm_suite.h"
#include "common/check_rows.h"
#include "common/row_norm_suite.h"
#include "common/softmax_suite.h"
#include "common/sum_suite.h"
#include "cuda/host_launcher.h"

namespace keras_mp {
namespace {

class Emulated {
 public:
  const char* Name() const { return "emulated"; }

  Status Normalize(const RowNorm& norm) {
    return IfValid(norm.rows, norm.size, norm.type,
                   [&] { cuda::LaunchRowNorm(norm, launcher_); });
  }
  Status Differentiate(const RowNormGradient& gradient) {
    return IfValid(gradient.rows, gradient.size, gradient.type, [&] {
      std::vector<float> workspace(cuda::WorkspaceFloats(gradient));
      cuda::LaunchRowNormGradient(gradient, workspace.data(), launcher_);
    });
  }
  Status Normalize(const Softmax& softmax) {
    return IfValid(softmax.rows, softmax.size, softmax.type,
                   [&] { cuda::LaunchSoftmax(softmax, launcher_); });
  }
  Status Differentiate(const SoftmaxGradient& gradient) {
    return IfValid(gradient.rows, gradient.size, gradient.type,
                   [&] { cuda::LaunchSoftmaxGradient(gradient, launcher_); });
  }
  Status Differentiate(const FloatSoftmaxGradient& gradient) {
    return IfValid(gradient.rows, gradient.size, gradient.type,
                   [&] { cuda::LaunchFloatSoftmaxGradient(gradient, launcher_); });
  }
  Status Add(const Sum& sum) {
    return IfValid(std::min(sum.outer, sum.inner), sum.count, sum.type, [&] {
      std::vector<float> workspace(cuda::WorkspaceFloats(sum));
      cuda::LaunchSum(sum, workspace.data(), launcher_);
    });
  }

  Status Normalize(const BatchNorm& norm) {
    return WithWorkspace(norm, [&](float* workspace) {
      cuda::LaunchBatchNorm(norm, workspace, launcher_);
    });
  }
  Status Differentiate(const BatchNormGradient& gradient) {
    return WithWorkspace(gradient, [&](float* workspace) {
      cuda::LaunchBatchNormGradient(gradient, workspace, launcher_);
    });
  }

 private:
  template <class Problem, class Launch>
  static Status WithWorkspace(const Problem& problem, const Launch& launch) {
    const ChannelShape& shape = problem.shape;
    return IfValid(std::min(shape.outer, shape.inner), shape.channels, problem.type, [&] {
      std::vector<float> workspace(cuda::WorkspaceFloats(problem));
      launch(workspace.data());
    });
  }

  template <class Launch>
  static Status IfValid(std::int64_t rows, std::int64_t size, DataType type,
                        const Launch& launch) {
    const Status status = CheckRows(rows, size, type);
    if (status.ok()) launch();
    return status;
  }

  cuda::HostLauncher<cuda::kBlock> launcher_;
};

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  Emulated emulated;
  // The registers of a warp hold rows of up to 1024 elements, those of a block 8192.
  row_norm::TestAll(emulated, {7, 217, 1025}, {1, 9});
  softmax::TestAll(emulated, {7, 217, 1025}, 9'000);
  sum::TestAll(emulated, {0, 1, 257}, 1 << 15);
  batch_norm::TestAll(emulated, {1, 7, 66}, {1, 7, 1040}, 20'000);
  return Report();
}
