// Tests sum_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/sum_cpu.h"

#include <random>

#include "common/sum_suite.h"

namespace keras_mp::sum {
namespace {

struct Cpu {
  Isa isa;
  int threads = 1;

  const char* Name() const { return keras_mp::Name(isa); }
  Status Add(const Sum& sum) {
    return SumCpu(sum, {threads, &threads, RunOnThreads}, isa);
  }
};

void TestThreadsDoNotChangeBits(Isa isa) {
  Cpu alone = {isa, 1}, threads = {isa, 3};
  std::mt19937 random(3);
  const auto x = Numbers(DataType::kHalf, 5 * 989 * 217, 0, 1, random);
  for (std::int64_t inner : {1, 217}) {
    const std::int64_t count = 989 * 217 / inner;
    EXPECT(SumOf(x, 5, count, inner, DataType::kHalf, alone) ==
               SumOf(x, 5, count, inner, DataType::kHalf, threads),
           "%s", Name(isa));
  }
}

}  // namespace
}  // namespace keras_mp::sum

int main() {
  using namespace keras_mp;
  for (Isa isa : SupportedIsas()) {
    sum::Cpu cpu = {isa, 2};
    sum::TestAll(cpu, {0, 1, 7, 17, 255, 256, 257, 989}, 1 << 25);
    sum::TestThreadsDoNotChangeBits(isa);
  }
  return Report();
}
