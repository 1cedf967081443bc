// What each instruction set provides for the update step: functions on a block of up to
// kUpdateBlock numbers. They are compiled apart from the other kernels, for nothing may
// be contracted here.

#ifndef KERAS_MP_SRC_CPU_UPDATE_KERNEL_H_
#define KERAS_MP_SRC_CPU_UPDATE_KERNEL_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/update.h"

namespace keras_mp {

// A block of a gradient, a master and three slots stays in the first cache.
constexpr std::int64_t kUpdateBlock = 1024;

struct UpdateKernel {
  // to = x / scale. Returns whether all are finite.
  bool (*unscale)(const void* x, DataType type, std::int64_t n, float scale, float* to);
  float (*sum_of_squares)(const float* x, std::int64_t n);
  void (*follow)(float* master, const std::uint16_t* weight, DataType type,
                 std::int64_t n, Rounding rounding);
  // Nearest where `uniforms` is null.
  void (*cast)(const float* master, std::uint16_t* weight, DataType type,
               std::int64_t n, const float* uniforms);
  void (*step)(UpdateRule rule, const UpdateNumbers& numbers, bool decays,
               const float* g, float* master, float* const* slots, std::int64_t n);
};

// Null where the library was built without it.
const UpdateKernel* PortableUpdateKernel();
const UpdateKernel* NeonUpdateKernel();
const UpdateKernel* Avx2UpdateKernel();
const UpdateKernel* Avx512UpdateKernel();

const UpdateKernel* UpdateKernelOf(Isa isa);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_KERNEL_H_
