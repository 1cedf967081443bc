// Tests batch_norm_cpu.h against double precision, on every instruction set of this
// machine.

#include "keras_mp/batch_norm_cpu.h"

#include <random>

#include "common/batch_norm_suite.h"

namespace keras_mp::batch_norm {
namespace {

struct Cpu {
  Isa isa;
  int threads = 1;

  const char* Name() const { return keras_mp::Name(isa); }
  Status Normalize(const BatchNorm& norm) { return BatchNormCpu(norm, Threads(), isa); }
  Status Differentiate(const BatchNormGradient& gradient) {
    return BatchNormGradientCpu(gradient, Threads(), isa);
  }
  Parallel Threads() { return {threads, &threads, RunOnThreads}; }
};

void TestThreadsDoNotChangeBits(Isa isa) {
  Cpu alone = {isa, 1}, threads = {isa, 3};
  for (const ChannelShape& shape : {ChannelShape{989, 217, 1}, {5, 17, 989}}) {
    std::mt19937 random(3), again(3);
    Case one(shape, DataType::kHalf, 1, random), other(shape, DataType::kHalf, 1, again);
    one.Run(alone);
    other.Run(threads);
    EXPECT(one.y == other.y && one.grad_x == other.grad_x && one.mean_ == other.mean_ &&
               one.variance_ == other.variance_ && one.grad_gamma == other.grad_gamma,
           "%s", Name(isa));
  }
}

}  // namespace
}  // namespace keras_mp::batch_norm

int main() {
  using namespace keras_mp;
  for (Isa isa : SupportedIsas()) {
    batch_norm::Cpu cpu = {isa, 2};
    batch_norm::TestAll(cpu, {1, 7, 16, 17, 64, 111, 217}, {1, 2, 7, 17, 64, 256, 257, 989},
                        200'000);
    batch_norm::TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
