// Which instruction sets this library and this machine have, and the kernels of each.

#include "keras_mp/cpu.h"

#include <cstdlib>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/kernels.h"

namespace keras_mp {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Bits of CPUID, leaf 7: of EDX in subleaf 0, and of EAX in subleaf 1.
constexpr unsigned kCpuidAmxBf16 = 1u << 22, kCpuidAmxTile = 1u << 24;
constexpr unsigned kCpuidAmxFp16 = 1u << 21;

bool CpuHasAmx(Isa isa) {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & kCpuidAmxTile) || !(edx & kCpuidAmxBf16)) return false;
  if (isa == Isa::kAmxBf16) return true;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kCpuidAmxFp16);
}

// Linux lets a process use the tile registers once it has asked for their state.
bool KernelPermitsTileRegisters() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted =
      syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

bool MachineHasAmx(Isa isa) { return CpuHasAmx(isa) && KernelPermitsTileRegisters(); }
#elif defined(__x86_64__)
bool MachineHasAmx(Isa) { return false; }
#endif

bool MachineHas(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmxBf16 || isa == Isa::kAmxFp16) {
    return MachineHas(Isa::kAvx512Bf16) && MachineHasAmx(isa);
  }
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

// The kernels of avx512, except for those that multiply 16-bit numbers.
Kernels Avx512KernelsWith(const GemmKernel* half, const GemmKernel* bfloat16,
                          const AttentionKernel* attention) {
  Kernels kernels = *Avx512Kernels();
  kernels.half_gemm = half;
  kernels.bfloat16_gemm = bfloat16;
  kernels.attention = attention;
  return kernels;
}

const Kernels* Avx512Bf16Kernels() {
  if (Avx512Bf16Bfloat16Gemm() == nullptr) return nullptr;
  static const Kernels kernels =
      Avx512KernelsWith(Avx512Kernels()->half_gemm, Avx512Bf16Bfloat16Gemm(),
                        Avx512Bf16Attention());
  return &kernels;
}

const Kernels* AmxBf16Kernels() {
  if (AmxBf16Bfloat16Gemm() == nullptr) return nullptr;
  static const Kernels kernels =
      Avx512KernelsWith(AmxBf16HalfGemm(), AmxBf16Bfloat16Gemm(), AmxBf16Attention());
  return &kernels;
}

const Kernels* AmxFp16Kernels() {
  if (AmxFp16HalfGemm() == nullptr) return nullptr;
  static const Kernels kernels =
      Avx512KernelsWith(AmxFp16HalfGemm(), AmxFp16Bfloat16Gemm(), AmxBf16Attention());
  return &kernels;
}

}  // namespace

const Kernels* KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAmxFp16:
      return AmxFp16Kernels();
    case Isa::kAmxBf16:
      return AmxBf16Kernels();
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
    case Isa::kAmxBf16:
      return "amx_bf16";
    case Isa::kAmxFp16:
      return "amx_fp16";
    case Isa::kUnknown:
      break;
  }
  return "unknown";
}

bool IsSupported(Isa isa) { return KernelsOf(isa) != nullptr && MachineHas(isa); }

Isa BestIsa() {
  Isa best = Isa::kPortable;
  for (Isa isa : kIsas) {
    const bool has_run = isa != Isa::kAmxFp16;
    if (has_run && IsSupported(isa)) best = isa;
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
