// What the kernels for a CPU have in common: their instruction sets, and how they run in
// parallel.

#ifndef KERAS_MP_CPU_H_
#define KERAS_MP_CPU_H_

#include <cstdint>

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

// Instruction sets with kernels of their own, from the plainest to the fastest.
enum class Isa { kPortable, kNeon, kAvx2, kAvx512 };

const char* Name(Isa isa);

// Whether this library was built with the kernels and this machine can run them.
bool IsSupported(Isa isa);

// The fastest that is supported.
Isa BestIsa();

}  // namespace keras_mp

#endif  // KERAS_MP_CPU_H_
