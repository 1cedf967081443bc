// Which instruction sets this library and this machine have, and the kernels of each.

#include "keras_mp/cpu.h"

#include <cstdlib>
#include <string>

#include "cpu/kernels.h"

namespace keras_mp {
namespace {

bool MachineHas(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
  }
  if (isa == Isa::kAvx512) return __builtin_cpu_supports("avx512f");
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  }
#endif
  // Every aarch64 has NEON, and its kernels are built for no other processor.
  return isa == Isa::kPortable || isa == Isa::kNeon;
}

Isa NamedIsa(const std::string& name) {
  for (Isa isa : kIsas) {
    if (name == Name(isa)) return isa;
  }
  return Isa::kUnknown;
}

// The kernels of avx512, except for the GEMM of bfloat16.
const Kernels* Avx512Bf16Kernels() {
  if (Avx512Bf16Bfloat16Gemm() == nullptr) return nullptr;
  static const Kernels kernels = [] {
    Kernels changed = *Avx512Kernels();
    changed.bfloat16_gemm = Avx512Bf16Bfloat16Gemm();
    return changed;
  }();
  return &kernels;
}

}  // namespace

const Kernels* KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return Avx512Bf16Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kNeon:
      return NeonKernels();
    case Isa::kPortable:
      return PortableKernels();
    case Isa::kUnknown:
      break;
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
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kUnknown:
      break;
  }
  return "unknown";
}

bool IsSupported(Isa isa) { return KernelsOf(isa) != nullptr && MachineHas(isa); }

Isa BestIsa() {
  Isa best = Isa::kPortable;
  for (Isa isa : kIsas) {
    if (IsSupported(isa)) best = isa;
  }
  return best;
}

Isa ChosenIsa() {
  static const Isa chosen = [] {
    const char* name = std::getenv("KERAS_MP_CPU_ISA");
    return name == nullptr || *name == '\0' ? BestIsa() : NamedIsa(name);
  }();
  return chosen;
}

}  // namespace keras_mp
