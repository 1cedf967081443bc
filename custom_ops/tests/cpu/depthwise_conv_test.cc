// Tests depthwise_conv_cpu.h against double precision, on every instruction set of this
// machine.

#include "keras_mp/depthwise_conv_cpu.h"

#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "common/depthwise_conv_suite.h"

namespace {

// From 0 on, so many allocations succeed, and the next one does not.
std::int64_t allocations_left = -1;

}  // namespace

// Not inline, or GCC takes `free` for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* data = std::malloc(size)) return data;
  throw std::bad_alloc();
}

[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}

namespace keras_mp::depthwise_conv {
namespace {

struct Cpu {
  Isa isa;
  int threads = 1;

  const char* Name() const { return keras_mp::Name(isa); }
  Status Convolve(const DepthwiseConv& conv, const void* x, const void* kernel,
                  const void* bias, DataType bias_type, void* y, DataType y_type) {
    return DepthwiseConvCpu(conv, x, kernel, bias, bias_type, y, y_type, Threads(), isa);
  }
  Status GradX(const DepthwiseConv& conv, const void* kernel, const void* grad_y,
               void* grad_x) {
    return DepthwiseConvGradXCpu(conv, kernel, grad_y, grad_x, Threads(), isa);
  }
  Status GradKernel(const DepthwiseConv& conv, const void* x, const void* grad_y,
                    float* grad_kernel) {
    return DepthwiseConvGradKernelCpu(conv, x, grad_y, grad_kernel, Threads(), isa);
  }
  Parallel Threads() { return {threads, &threads, RunOnThreads}; }
};

void TestThreadsDoNotChangeBits(Isa isa) {
  std::vector<std::uint16_t> results[2];
  std::vector<float> grads[2];
  for (int threads : {1, 3}) {
    std::mt19937 random(4);
    const Spacing spacing = {3, 2, 1};
    const Case one(3, 64, Dimension(30, spacing, true), Dimension(30, spacing, true),
                   DataType::kBfloat16, true, random);
    auto& result = results[threads / 2];
    auto& grad = grads[threads / 2];
    result.resize(one.SizeOfY());
    grad.resize(one.kernel.size());
    Cpu cpu = {isa, threads};
    cpu.Convolve(one.conv, one.x.data(), one.Kernel(), nullptr, DataType::kFloat,
                 result.data(), one.conv.type);
    cpu.GradKernel(one.conv, one.x.data(), one.grad_y.data(), grad.data());
  }
  EXPECT(results[0] == results[1] && grads[0] == grads[1], "%s", Name(isa));
}

// The largest numbers that TensorFlow's shapes and the attributes may have.
void TestLargestSizes() {
  constexpr std::int64_t size = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t reach = (most - 1) * most + 1;
  const auto same = Convolved(size, most, 1, most, true);
  EXPECT(same.result == size && same.before == (reach - 1) / 2, "same");
  const auto apart = Convolved(size, most, most, 1, true);
  EXPECT(apart.result == size / most + 1, "same, and a stride");
  const auto valid = Convolved(size, most, 1, most, false);
  EXPECT(valid.result == size - reach + 1 && valid.before == 0, "valid");
  EXPECT(Convolved(0, most, most, most, true).result == 0, "nothing");
}

// Runs `compute` with room for 0 allocations, for 1, and so on, until it does not run out
// of memory.
template <class Compute>
void CheckWithoutMemory(const char* name, const Compute& compute) {
  for (allocations_left = 0; allocations_left < 1'000;) {
    const std::int64_t room = allocations_left;
    const Status status = compute();
    allocations_left = -1;
    if (status.ok()) {
      EXPECT(room > 0, "%s allocates nothing", name);
      return;
    }
    EXPECT(status.code == StatusCode::kOutOfMemory, "%s: %s", name, status.message);
    allocations_left = room + 1;
  }
  EXPECT(false, "%s never ends", name);
}

void TestNoMemory() {
  std::mt19937 random(6);
  const Spacing spacing = {3, 2, 1};
  const Case one(2, 3, Dimension(9, spacing, true), Dimension(9, spacing, true),
                 DataType::kHalf, true, random);
  std::vector<std::uint16_t> y(one.SizeOfY()), grad_x(one.SizeOfX());
  std::vector<float> grad_kernel(one.kernel.size());
  CheckWithoutMemory("y", [&] {
    return DepthwiseConvCpu(one.conv, one.x.data(), one.Kernel(), one.bias.data(),
                            DataType::kFloat, y.data(), one.conv.type);
  });
  CheckWithoutMemory("grad_x", [&] {
    return DepthwiseConvGradXCpu(one.conv, one.Kernel(), one.grad_y.data(),
                                 grad_x.data());
  });
  CheckWithoutMemory("grad_kernel", [&] {
    return DepthwiseConvGradKernelCpu(one.conv, one.x.data(), one.grad_y.data(),
                                      grad_kernel.data());
  });
}

}  // namespace
}  // namespace keras_mp::depthwise_conv

int main() {
  using namespace keras_mp;
  depthwise_conv::TestLargestSizes();
  depthwise_conv::TestNoMemory();
  for (Isa isa : SupportedIsas()) {
    depthwise_conv::Cpu cpu = {isa, 2};
    depthwise_conv::TestAll(cpu, {1, 7, 17, 33, 64, 100});
    depthwise_conv::TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
