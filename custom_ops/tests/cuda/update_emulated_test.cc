// Tests of the kernels of cuda/update/kernels.cuh, run thread by thread on the host. They
// need neither a GPU nor CUDA.

#include <memory>
#include <vector>

#include "cuda/emulator.h"
// After the emulator, whose definitions it uses.
#include "cuda/update/launch.h"
#include "common/compressed_suite.h"
#include "common/update_suite.h"

namespace keras_mp {
namespace {

// The launcher of cuda/update/launch.h that runs a kernel before the call returns.
struct HostLauncher {
  template <class Arguments>
  bool Run(void (*kernel)(Arguments), int blocks, std::size_t shared_bytes,
           const Arguments& arguments) {
    EXPECT(sizeof arguments <= 4096, "%zu bytes of arguments", sizeof arguments);
    gridDim = {static_cast<unsigned>(blocks), 1, 1};
    for (unsigned block = 0; block < gridDim.x; ++block) {
      blockIdx = {block, 0, 0};
      emulator::Machine::Get().Run([&] { kernel(arguments); }, {cuda::kThreads, 1, 1},
                                   shared_bytes, block);
    }
    return true;
  }

  bool Clear(void* pointer, std::size_t bytes) {
    std::memset(pointer, 0, bytes);
    return true;
  }
};

constexpr Status kNegativeCount = {StatusCode::kInvalidArgument, ""};

class Emulated {
 public:
  template <class Number>
  using Allocator = std::allocator<Number>;

  const char* Name() const { return "emulated"; }
  Status Check(const GradientCheck& check) { return Unscale(check, nullptr); }
  Status Unscale(const GradientCheck& check, float* const* to) {
    if (check.count < 0) return kNegativeCount;
    std::vector<double> sums(static_cast<std::size_t>(cuda::ChunksOf(check)));
    cuda::LaunchCheck(check, to, sums.data(), launcher_);
    return {};
  }
  Status SyncMasters(const MasterPair* pairs, std::int64_t count, Rounding rounding) {
    if (count < 0) return kNegativeCount;
    cuda::LaunchSyncMasters(pairs, count, rounding, launcher_);
    return {};
  }
  Status Cast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms) {
    if (count < 0) return kNegativeCount;
    cuda::LaunchCast(pairs, count, uniforms, launcher_);
    return {};
  }
  Status Update(const keras_mp::Update& update) {
    if (update.count < 0) return kNegativeCount;
    const Status forms = CheckForms(update);
    if (!forms.ok()) return forms;
    cuda::LaunchUpdate(update, launcher_);
    return {};
  }

 private:
  HostLauncher launcher_;
};

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  UpdateSuite suite(Emulated{});
  suite.TestAll();
  CompressedSuite compressed(Emulated{});
  compressed.TestAll(1 << 15);
  return Report();
}
