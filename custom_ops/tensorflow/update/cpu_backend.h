// CpuBackend: the functions of update_cpu.h, run on given threads.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_CPU_BACKEND_H_
#define KERAS_MP_TENSORFLOW_UPDATE_CPU_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "keras_mp/update_cpu.h"

namespace keras_mp {

class CpuBackend {
 public:
  explicit CpuBackend(const Parallel& threads) : threads_(threads) {}

  Status Check(const GradientCheck& check) const {
    return CheckGradientsCpu(check, threads_);
  }
  Status Unscale(const GradientCheck& check, float* const* to) const {
    return UnscaleGradientsCpu(check, to, threads_);
  }
  Status SyncMasters(const MasterPair* pairs, std::int64_t count,
                     Rounding rounding) const {
    return SyncMastersFromWeightsCpu(pairs, count, rounding, threads_);
  }
  Status Cast(const MasterPair* pairs, std::int64_t count,
              const float* const* uniforms) const {
    return CastMastersCpu(pairs, count, uniforms, threads_);
  }
  Status Update(const keras_mp::Update& update) const {
    return UpdateCpu(update, threads_);
  }
  Status SetZero(float* number) const {
    *number = 0;
    return {};
  }
  Status Copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }

 private:
  Parallel threads_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_CPU_BACKEND_H_
