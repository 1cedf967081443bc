// Tests softmax_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/softmax_cpu.h"

#include <random>

#include "common/softmax_suite.h"

namespace keras_mp::softmax {
namespace {

struct Cpu {
  Isa isa;
  int threads = 1;

  const char* Name() const { return keras_mp::Name(isa); }
  Status Normalize(const Softmax& softmax) { return SoftmaxCpu(softmax, Threads(), isa); }
  Status Differentiate(const SoftmaxGradient& gradient) {
    return SoftmaxGradientCpu(gradient, Threads(), isa);
  }
  Status Differentiate(const FloatSoftmaxGradient& gradient) {
    return FloatSoftmaxGradientCpu(gradient, Threads(), isa);
  }
  Parallel Threads() { return {threads, &threads, RunOnThreads}; }
};

void TestThreadsDoNotChangeBits(Isa isa) {
  Cpu alone = {isa, 1}, threads = {isa, 3};
  std::mt19937 random(5), again(5);
  Case one(300, 217, DataType::kHalf, 3, random), other(300, 217, DataType::kHalf, 3, again);
  one.Run(alone);
  other.Run(threads);
  EXPECT(one.y == other.y && one.grad_x == other.grad_x &&
             one.grad_float_x == other.grad_float_x,
         "%s", Name(isa));
}

}  // namespace
}  // namespace keras_mp::softmax

int main() {
  using namespace keras_mp;
  for (Isa isa : SupportedIsas()) {
    softmax::Cpu cpu = {isa, 2};
    // The longest row is longer than one whose exponentials are kept.
    softmax::TestAll(cpu, {1, 7, 16, 17, 64, 111, 217, 989, 1024, 1025, 5000}, 100'000);
    softmax::TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
