// The kernels of cuda/update/kernels.cuh, thread by thread on the host. Needs neither a GPU nor
// CUDA.

#include <memory>
#include <vector>

#include "cuda/emulator.h"
// Uses what the emulator defines.
#include "cuda/update/launch.h"
#include "common/update_suite.h"

namespace keras_mp {
namespace {

// Runs a kernel before the call returns.
struct OnHost {
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
    std::vector<double> squares(static_cast<std::size_t>(cuda::PiecesOf(check)));
    cuda::CallCheck(check, to, squares.data(), host_);
    return {};
  }
  Status Follow(const MasterPair* pairs, std::int64_t count, Rounding rounding) {
    if (count < 0) return kNegativeCount;
    cuda::CallFollow(pairs, count, rounding, host_);
    return {};
  }
  Status Cast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms) {
    if (count < 0) return kNegativeCount;
    cuda::CallCast(pairs, count, uniforms, host_);
    return {};
  }
  Status Update(const keras_mp::Update& update) {
    if (update.count < 0) return kNegativeCount;
    cuda::CallUpdate(update, host_);
    return {};
  }

 private:
  OnHost host_;
};

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  UpdateSuite suite(Emulated{});
  suite.TestAll();
  return Report();
}
