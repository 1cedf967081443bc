// The instruction sets of the CPU kernels, and the threads that they run on.

#ifndef KERAS_MP_CPU_H_
#define KERAS_MP_CPU_H_

#include <cstdint>

#include "keras_mp/status.h"

namespace keras_mp {

// The caller's threads: a kernel starts none of its own. `run` calls
// body(context, i) for every i in [0, count), in any order, on up to `threads` threads
// at a time, and returns after the last.
struct Parallel {
  using Body = void (*)(void* context, std::int64_t i);

  int threads = 1;
  void* state = nullptr;
  void (*run)(void* state, std::int64_t count, void* context, Body body) = nullptr;
};

// The instruction sets that have kernels, from the slowest to the fastest. kUnknown is
// supported nowhere.
enum class Isa {
  kUnknown,
  kPortable,
  kNeon,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmxBf16,
  kAmxFp16
};

inline constexpr Isa kIsas[] = {Isa::kPortable, Isa::kNeon,       Isa::kAvx2,
                                Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAmxBf16,
                                Isa::kAmxFp16};

const char* Name(Isa isa);

// Whether this library has the kernels and this machine can run them.
bool IsSupported(Isa isa);

// The fastest supported instruction set, but for kAmxFp16: its kernels were tested by a
// model of the instructions and have not run on a machine yet, so that only its name
// chooses them.
Isa BestIsa();

// The instruction set that the environment variable KERAS_MP_CPU_ISA names, supported or
// not; BestIsa() where it is unset or empty. The variable is read once.
Isa ChosenIsa();

// The status of a kernel whose instruction set is not supported.
inline constexpr Status kUnsupportedIsa = {
    StatusCode::kUnimplemented,
    "this machine lacks the instruction set. KERAS_MP_CPU_ISA chooses one that it has"};

}  // namespace keras_mp

#endif  // KERAS_MP_CPU_H_
