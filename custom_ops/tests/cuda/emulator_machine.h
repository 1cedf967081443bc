// Runs the threads of a CUDA block on the host, as fibers. A fiber runs until it waits at
// a barrier; a seed shuffles the order. Shared memory is initialized with NaN, an
// asynchronous copy arrives when it is waited for and not before, and an instruction of a
// warp executes when all 32 lanes have arrived at it.

#ifndef KERAS_MP_TESTS_CUDA_EMULATOR_MACHINE_H_
#define KERAS_MP_TESTS_CUDA_EMULATOR_MACHINE_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace keras_mp::emulator {

// Ends the program: after a fault the kernel under test cannot continue.
[[noreturn]] inline void Fail(const char* what) {
  std::printf("emulator: %s (block %u,%u,%u thread %u)\n", what, blockIdx.x, blockIdx.y,
              blockIdx.z, threadIdx.x);
  std::exit(1);
}

inline void Check(bool ok, const char* what) {
  if (!ok) Fail(what);
}

inline bool IsAligned(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

struct Copy {
  void* to;
  const void* from;
  int bytes, valid;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Dim3 index;
  bool waiting = false;
  bool done = false;
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;
};

struct Barrier {
  int arrived = 0;
  std::vector<int> members;
};

// The operands that the lanes of a warp bring to an instruction, and its results.
struct Warp {
  Barrier barrier;
  int operation[32];
  const unsigned short* row[32];
  unsigned a[32][4];
  unsigned b[32][2];
  float c[32][4];
};

class Machine {
 public:
  static Machine& Get() {
    static Machine machine;
    return machine;
  }

  // Runs one block.
  void Run(const std::function<void()>& kernel, Dim3 block, std::size_t shared_bytes,
           unsigned seed) {
    kernel_ = &kernel;
    blockDim = block;
    const int threads = static_cast<int>(block.x * block.y * block.z);
    // Not larger than asked for, so that a sanitizer sees accesses beyond. 0xff is NaN.
    shared_.reset(static_cast<unsigned char*>(
        std::aligned_alloc(
            128, std::max<std::size_t>(128, (shared_bytes + 127) / 128 * 128))));
    std::memset(shared_.get(), 0xff, shared_bytes);
    shared_bytes_ = shared_bytes;
    while (static_cast<int>(fibers_.size()) < threads) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.resize(256 * 1024);
    }
    warps_.assign(static_cast<std::size_t>((threads + 31) / 32), {});
    all_ = {};
    std::vector<int> order;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
      const unsigned u = static_cast<unsigned>(i);
      fiber.index = {u % block.x, u / block.x % block.y, u / (block.x * block.y)};
      fiber.waiting = fiber.done = false;
      fiber.groups.clear();
      fiber.open.clear();
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Machine::Enter, 0);
      warps_[static_cast<std::size_t>(i / 32)].barrier.members.push_back(i);
      all_.members.push_back(i);
      order.push_back(i);
    }
    // In every other block each warp runs as far as it can before the next one does, so
    // that one warp is a barrier ahead of another. In the other blocks all threads take
    // turns.
    const bool warp_by_warp = seed % 2 == 1;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    if (warp_by_warp) {
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return (a / 32 * 5 + static_cast<int>(seed)) % 8 <
               (b / 32 * 5 + static_cast<int>(seed)) % 8;
      });
    }
    for (bool ran = true; ran;) {
      ran = false;
      for (const int i : order) {
        Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
        if (fiber.done || fiber.waiting) continue;
        current_ = i;
        threadIdx = fiber.index;
        released_ = false;
        swapcontext(&scheduler_, &fiber.context);
        ran = true;
        if (warp_by_warp && released_) break;  // continue with the first that can run
      }
    }
    for (const int i : order) {
      const Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
      Check(fiber.done, "a thread waits for ever: not all came to a barrier");
      Check(fiber.open.empty(), "a copy was never committed");
    }
  }

  // Waits for the other members of the barrier. The last to arrive runs `complete` first.
  template <class Complete>
  void Wait(Barrier& barrier, Complete complete) {
    if (++barrier.arrived == static_cast<int>(barrier.members.size())) {
      complete();
      barrier.arrived = 0;
      released_ = true;
      for (const int i : barrier.members) {
        fibers_[static_cast<std::size_t>(i)]->waiting = false;
      }
      return;
    }
    Fiber& fiber = Current();
    fiber.waiting = true;
    swapcontext(&fiber.context, &scheduler_);
  }

  Fiber& Current() { return *fibers_[static_cast<std::size_t>(current_)]; }
  Warp& CurrentWarp() { return warps_[static_cast<std::size_t>(current_ / 32)]; }
  int lane() const { return current_ % 32; }
  Barrier& all() { return all_; }
  unsigned char* shared() { return shared_.get(); }

  bool IsShared(const void* p, std::size_t bytes) const {
    const auto* byte = static_cast<const unsigned char*>(p);
    return byte >= shared_.get() && byte + bytes <= shared_.get() + shared_bytes_;
  }

 private:
  static void Enter() {
    (*Get().kernel_)();
    Get().Current().done = true;
  }

  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };

  const std::function<void()>* kernel_ = nullptr;
  ucontext_t scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  Barrier all_;
  std::unique_ptr<unsigned char, Free> shared_;
  std::size_t shared_bytes_ = 0;
  int current_ = 0;
  bool released_ = false;  // whether the current fiber was the last at a barrier
};

inline void CheckSameOperation(const Warp& warp) {
  for (const int operation : warp.operation) {
    Check(operation == warp.operation[0], "the lanes of a warp went separate ways");
  }
}

inline void Perform(const Copy& copy) {
  std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
  if (copy.valid > 0) {
    std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.valid));
  }
}

inline unsigned short HalfOf(unsigned word, int i) {
  return static_cast<unsigned short>(word >> (16 * (i % 2)));
}

}  // namespace keras_mp::emulator

#endif  // KERAS_MP_TESTS_CUDA_EMULATOR_MACHINE_H_
