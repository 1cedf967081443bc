// Tests of update_cpu.h for every instruction set that this machine supports.
//
//   update_cpu_test [number of random lists, only these, for the fastest instruction set]

#include "keras_mp/update_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/compressed_suite.h"
#include "common/update_suite.h"
#include "cpu/adafactor_suite.h"
#include "cpu/lamb_suite.h"

namespace keras_mp {
namespace {

class CpuDevice {
 public:
  template <class Number>
  using Allocator = std::allocator<Number>;

  explicit CpuDevice(Isa isa) : isa_(isa) {}

  const char* Name() const { return keras_mp::Name(isa_); }
  Status Check(const GradientCheck& check) {
    return CheckGradientsCpu(check, Threads(), isa_);
  }
  Status Unscale(const GradientCheck& check, float* const* to) {
    return UnscaleGradientsCpu(check, to, Threads(), isa_);
  }
  Status SyncMasters(const MasterPair* pairs, std::int64_t count, Rounding rounding) {
    return SyncMastersFromWeightsCpu(pairs, count, rounding, Threads(), isa_);
  }
  Status Cast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms) {
    return CastMastersCpu(pairs, count, uniforms, Threads(), isa_);
  }
  Status Update(const keras_mp::Update& update) {
    return UpdateCpu(update, Threads(), isa_);
  }

 private:
  // One, two or three threads in turn.
  Parallel Threads() {
    threads_ = threads_ % 3 + 1;
    return {threads_, &threads_, RunOnThreads};
  }

  Isa isa_;
  int threads_ = 0;
};

// So many gradients that they are written past the caches: 16 and 32 bits, to where whole
// vectors can be written and to where they cannot, and the sum of their squares.
void TestManyGradients(Isa isa) {
  constexpr std::int64_t kSizes[] = {(1 << 22) + 3, (1 << 22) + 1029};
  constexpr float kGuard = 7;
  const std::vector<std::uint16_t> halves(kSizes[0], FloatToHalf(6));
  std::vector<float> singles(kSizes[1]);
  for (std::int64_t i = 0; i < kSizes[1]; ++i) singles[i] = static_cast<float>(i % 97);
  std::vector<float> to_halves(kSizes[0] + 1, kGuard), to_singles(kSizes[1] + 2, kGuard);

  const Gradient gradients[] = {{kSizes[0], DataType::kHalf, halves.data()},
                                {kSizes[1], DataType::kFloat, singles.data()}};
  float* const to[] = {to_halves.data(), to_singles.data() + 1};
  const float scale = 2;
  float largest[2], sum_of_squares;
  GradientCheck check;
  check.gradients = gradients;
  check.count = 2;
  check.scale = &scale;
  check.largest = largest;
  check.sum_of_squares = &sum_of_squares;
  EXPECT(CpuDevice(isa).Unscale(check, to).ok(), "%s: many gradients", Name(isa));

  double expected_sum = 9.0 * kSizes[0];
  std::int64_t wrong = std::count_if(to_halves.begin(), to_halves.end() - 1,
                                     [](float x) { return x != 3; });
  for (std::int64_t i = 0; i < kSizes[1]; ++i) {
    const float expected = static_cast<float>(i % 97) / 2;
    wrong += to_singles[i + 1] != expected;
    expected_sum += static_cast<double>(expected) * expected;
  }
  EXPECT(wrong == 0, "%s: %ld of many gradients are wrong", Name(isa), wrong);
  EXPECT(to_halves.back() == kGuard && to_singles.front() == kGuard &&
             to_singles.back() == kGuard,
         "%s wrote beside many gradients", Name(isa));
  EXPECT(largest[0] == 3 && largest[1] == 48, "%s: largest %g and %g", Name(isa),
         largest[0], largest[1]);
  EXPECT(std::abs(sum_of_squares / expected_sum - 1) < 1e-5, "%s: sum of squares %g",
         Name(isa), sum_of_squares);
}

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  using namespace keras_mp;
  if (argc > 1) {
    UpdateSuite suite(CpuDevice{BestIsa()});
    suite.TestManyLists(std::atoi(argv[1]));
    return Report();
  }
  for (Isa isa : SupportedIsas()) {
    std::printf("%s\n", Name(isa));
    UpdateSuite suite(CpuDevice{isa});
    suite.TestAll();
    suite.TestPowers();
    suite.TestManyLists(100);
    CompressedSuite compressed(CpuDevice{isa});
    compressed.TestAll(1 << 21);
    LambSuite lamb(CpuDevice{isa});
    lamb.TestAll();
    AdafactorSuite adafactor(CpuDevice{isa});
    adafactor.TestAll();
    TestManyGradients(isa);
  }
  return Report();
}
