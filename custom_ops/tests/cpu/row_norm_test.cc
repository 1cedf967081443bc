// Tests row_norm_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/row_norm_cpu.h"

#include <random>

#include "common/row_norm_suite.h"

namespace keras_mp::row_norm {
namespace {

struct Cpu {
  Isa isa;
  int threads = 1;

  const char* Name() const { return keras_mp::Name(isa); }
  Status Normalize(const RowNorm& norm) { return RowNormCpu(norm, Threads(), isa); }
  Status Differentiate(const RowNormGradient& gradient) {
    return RowNormGradientCpu(gradient, Threads(), isa);
  }
  Parallel Threads() { return {threads, &threads, RunOnThreads}; }
};

void TestThreadsDoNotChangeBits(Isa isa) {
  Cpu alone = {isa, 1}, threads = {isa, 3};
  std::mt19937 random(5), again(5);
  Case one(989, 217, DataType::kHalf, RowNormKind::kLayer, random);
  Case other(989, 217, DataType::kHalf, RowNormKind::kLayer, again);
  one.Run(alone);
  other.Run(threads);
  EXPECT(one.y == other.y && one.grad_x == other.grad_x &&
             one.grad_gamma == other.grad_gamma,
         "%s", Name(isa));
}

}  // namespace
}  // namespace keras_mp::row_norm

int main() {
  using namespace keras_mp;
  for (Isa isa : SupportedIsas()) {
    row_norm::Cpu cpu = {isa, 2};
    row_norm::TestAll(cpu, {1, 7, 16, 17, 64, 111, 217, 989, 1025});
    row_norm::TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
