// The product of gemm.h on a CPU. All pointers, alpha's too, are in host memory.

#ifndef KERAS_MP_GEMM_CPU_H_
#define KERAS_MP_GEMM_CPU_H_

#include <cstdint>

#include "keras_mp/gemm.h"

namespace keras_mp {

// How a kernel runs in parallel; it makes no threads of its own. `run` calls
// body(context, i) for every i in [0, count), in any order, on up to `threads` threads
// at a time, and returns when all are done.
struct Parallel {
  using Body = void (*)(void* context, std::int64_t i);

  int threads = 1;
  void* state = nullptr;
  void (*run)(void* state, std::int64_t count, void* context, Body body) = nullptr;
};

// Instruction sets with a kernel of their own, from the plainest to the fastest.
enum class Isa { kPortable, kNeon, kAvx2, kAvx512 };

const char* Name(Isa isa);

// Whether this library was built with the kernel and this machine can run it.
bool IsSupported(Isa isa);

// The fastest that is supported.
Isa BestIsa();

// Computes `gemm`. Its bits depend on `isa`, never on the threads.
Status GemmCpu(const Gemm& gemm, const Parallel& parallel = {}, Isa isa = BestIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_CPU_H_
