#include "keras_mp/cpu.h"

#include <initializer_list>

#include "kernels.h"

namespace keras_mp {
namespace {

bool MachineHas(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return __builtin_cpu_supports("avx512f");
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  }
#endif
  // NEON belongs to every aarch64, and is built for nothing else.
  return isa == Isa::kPortable || isa == Isa::kNeon;
}

}  // namespace

const Kernels* KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kNeon:
      return NeonKernels();
    case Isa::kPortable:
      return PortableKernels();
  }
  return nullptr;
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kNeon:
      return "neon";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool IsSupported(Isa isa) { return KernelsOf(isa) != nullptr && MachineHas(isa); }

Isa BestIsa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kNeon}) {
    if (IsSupported(isa)) return isa;
  }
  return Isa::kPortable;
}

}  // namespace keras_mp
