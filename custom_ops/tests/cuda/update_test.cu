// Tests of update_cuda.h on the first CUDA device. Without one it exits with 77, which
// ctest counts as skipped.
//
//   update_cuda_test [number of random lists, 100 by default]

#include "keras_mp/update_cuda.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "common/compressed_suite.h"
#include "common/update_suite.h"

namespace keras_mp {
namespace {

void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);  // after an error in a kernel every later call fails
}

// Memory that the host and the device can access.
template <class Number>
struct ManagedAllocator {
  using value_type = Number;

  ManagedAllocator() = default;
  template <class Other>
  ManagedAllocator(const ManagedAllocator<Other>&) {}

  Number* allocate(std::size_t count) {
    void* memory = nullptr;
    CheckCuda(cudaMallocManaged(&memory, count * sizeof(Number)));
    return static_cast<Number*>(memory);
  }
  void deallocate(Number* memory, std::size_t) { CheckCuda(cudaFree(memory)); }

  bool operator==(const ManagedAllocator&) const { return true; }
  bool operator!=(const ManagedAllocator&) const { return false; }
};

class CudaDevice {
 public:
  template <class Number>
  using Allocator = ManagedAllocator<Number>;

  const char* Name() const { return "CUDA"; }
  Status Check(const GradientCheck& check) {
    const Workspace workspace(CheckWorkspaceBytes(check));
    return Wait(CheckGradientsCuda(check, workspace.memory, nullptr));
  }
  Status Unscale(const GradientCheck& check, float* const* to) {
    const Workspace workspace(CheckWorkspaceBytes(check));
    return Wait(UnscaleGradientsCuda(check, to, workspace.memory, nullptr));
  }
  Status SyncMasters(const MasterPair* pairs, std::int64_t count, Rounding rounding) {
    return Wait(SyncMastersFromWeightsCuda(pairs, count, rounding, nullptr));
  }
  Status Cast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms) {
    return Wait(CastMastersCuda(pairs, count, uniforms, nullptr));
  }
  Status Update(const keras_mp::Update& update) {
    return Wait(UpdateCuda(update, nullptr));
  }

 private:
  struct Workspace {
    explicit Workspace(std::size_t bytes) {
      if (bytes > 0) CheckCuda(cudaMalloc(&memory, bytes));
    }
    ~Workspace() { CheckCuda(cudaFree(memory)); }
    void* memory = nullptr;
  };

  static Status Wait(const Status& status) {
    CheckCuda(cudaDeviceSynchronize());
    return status;
  }
};

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  using namespace keras_mp;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU\n");
    return 77;
  }
  UpdateSuite suite(CudaDevice{});
  suite.TestAll();
  CompressedSuite compressed(CudaDevice{});
  compressed.TestAll(1 << 21);
  suite.TestManyLists(argc > 1 ? std::atoi(argv[1]) : 100);
  return Report();
}
