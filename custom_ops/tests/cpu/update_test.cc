// Tests of update_cpu.h for every instruction set that this machine supports.
//
//   update_cpu_test [number of random lists, only these, for the fastest instruction set]

#include "keras_mp/update_cpu.h"

#include <cstdlib>
#include <memory>

#include "common/compressed_suite.h"
#include "common/update_suite.h"

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
    suite.TestManyLists(100);
    CompressedSuite compressed(CpuDevice{isa});
    compressed.TestAll(1 << 21);
  }
  return Report();
}
