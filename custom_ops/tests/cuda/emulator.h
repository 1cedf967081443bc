// Runs the kernels of src/*_cuda*.cuh on the host, thread by thread: the same source,
// with what is in *cuda_primitives.cuh written out after the PTX ISA. Not
// fast, and not a model of time; it finds wrong indices, missing barriers, reads of
// memory that nobody wrote, misaligned addresses and bank conflicts of ldmatrix.
//
// Threads are fibers. One runs until it waits, in an order that a seed shuffles. Shared
// memory begins as NaN, an asynchronous copy arrives when it is waited for and not
// before, and an instruction of a warp takes place when all 32 lanes have come to it.

#ifndef KERAS_MP_TESTS_CUDA_EMULATOR_H_
#define KERAS_MP_TESTS_CUDA_EMULATOR_H_

#include <ucontext.h>

#include <algorithm>
#include <math.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cuda/common/types.h"
#include "common/half.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) ushort4 {
  unsigned short x, y, z, w;
};
struct alignas(4) ushort2 {
  unsigned short x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z,
                            unsigned short w) {
  return {x, y, z, w};
}
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }

namespace keras_mp::emulator {

// A fault of the kernel under test ends the program: there is nothing to go on with.
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

// What the lanes of a warp bring to an instruction, and take from it.
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
    // As large as asked for, so that a sanitizer sees what lies beyond; 0xff is NaN.
    shared_.reset(static_cast<unsigned char*>(
        std::aligned_alloc(128, std::max<std::size_t>(128, (shared_bytes + 127) / 128 * 128))));
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
    // Every other block runs each warp as far as it comes before the next, so that one
    // is a barrier ahead of another; the rest run all threads in turn.
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
        if (warp_by_warp && released_) break;  // on with the first that can run
      }
    }
    for (const int i : order) {
      const Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
      Check(fiber.done, "a thread waits for ever: not all came to a barrier");
      Check(fiber.open.empty(), "a copy was never committed");
    }
  }

  // Waits for the others; the last to come runs `complete` first.
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
  bool released_ = false;  // whether someone came last to a barrier
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

namespace keras_mp::cuda {

struct Half {};
struct Bfloat16 {};

inline float Widen(Half, Bits16 x) { return HalfToFloat(x); }
inline float Widen(Bfloat16, Bits16 x) { return Bfloat16ToFloat(x); }
inline Bits16 Round(Half, float x) { return FloatToHalf(x); }
inline Bits16 Round(Bfloat16, float x) { return FloatToBfloat16(x); }

template <class Vector>
Vector LoadWhole(const Vector* from) {
  emulator::Check(emulator::IsAligned(from, sizeof *from), "load: misaligned");
  return *from;
}
template <class Vector>
void StoreWhole(Vector* to, Vector x) {
  emulator::Check(emulator::IsAligned(to, sizeof x), "store: misaligned");
  *to = x;
}
inline void SyncThreads() {
  auto& machine = emulator::Machine::Get();
  machine.Wait(machine.all(), [] {});
}
inline void SyncWarp() {
  auto& machine = emulator::Machine::Get();
  emulator::Warp& warp = machine.CurrentWarp();
  warp.operation[machine.lane()] = 1;
  machine.Wait(warp.barrier, [&] { CheckSameOperation(warp); });
}
inline unsigned char* SharedMemory() { return emulator::Machine::Get().shared(); }

template <int kBytes>
void CopyAsync(void* shared, const void* global, int valid) {
  using namespace emulator;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  Check(IsAligned(shared, kBytes) && IsAligned(global, kBytes), "cp.async: misaligned");
  Check(Machine::Get().IsShared(shared, kBytes), "cp.async: outside of shared memory");
  Check(valid >= 0 && valid <= kBytes, "cp.async: source size");
  Machine::Get().Current().open.push_back({shared, global, kBytes, valid});
}
inline void CopyCommit() {
  emulator::Fiber& fiber = emulator::Machine::Get().Current();
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
template <int kPending>
void CopyWait() {
  auto& groups = emulator::Machine::Get().Current().groups;
  while (static_cast<int>(groups.size()) > kPending) {
    for (const emulator::Copy& copy : groups.front()) emulator::Perform(copy);
    groups.erase(groups.begin());
  }
}

// PTX ISA, "ldmatrix": threads 8i to 8i+7 hold the addresses of the rows of matrix i;
// thread t gets elements 2 * (t % 4) and the next of row t / 4.
template <bool kTranspose>
void LoadMatrices(const void* row, unsigned (&r)[4]) {
  using namespace emulator;
  Machine& machine = Machine::Get();
  Warp& warp = machine.CurrentWarp();
  const int lane = machine.lane();
  Check(IsAligned(row, 16), "ldmatrix: misaligned");
  Check(machine.IsShared(row, 16), "ldmatrix: outside of shared memory");
  warp.operation[lane] = 2;
  warp.row[lane] = static_cast<const unsigned short*>(row);
  machine.Wait(warp.barrier, [&] {
    CheckSameOperation(warp);
    for (int i = 0; i < 4; ++i) {
      unsigned banks = 0;
      for (int j = 0; j < 8; ++j) {
        banks |= 1u << reinterpret_cast<std::uintptr_t>(warp.row[8 * i + j]) / 16 % 8;
      }
      Check(banks == 0xff, "ldmatrix: bank conflict");
      for (int t = 0; t < 32; ++t) {
        unsigned word = 0;
        for (int e = 0; e < 2; ++e) {
          const int major = t / 4;
          const int minor = 2 * (t % 4) + e;
          const unsigned value = kTranspose ? warp.row[8 * i + minor][major]
                                            : warp.row[8 * i + major][minor];
          word |= value << (16 * e);
        }
        warp.a[t][i] = word;
      }
    }
  });
  std::copy_n(warp.a[lane], 4, r);
}

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
template <class T>
void MultiplyAdd(T, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  using namespace emulator;
  Machine& machine = Machine::Get();
  Warp& warp = machine.CurrentWarp();
  const int lane = machine.lane();
  warp.operation[lane] = 3;
  std::copy_n(a, 4, warp.a[lane]);
  warp.b[lane][0] = b0;
  warp.b[lane][1] = b1;
  std::copy_n(c, 4, warp.c[lane]);
  machine.Wait(warp.barrier, [&] {
    CheckSameOperation(warp);
    float full_a[16][16];
    float full_b[16][8];
    for (int t = 0; t < 32; ++t) {
      const int group = t >> 2;
      const int in_group = t % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
        const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        full_a[row][column] = Widen(T{}, HalfOf(warp.a[t][i / 2], i));
      }
      for (int i = 0; i < 4; ++i) {
        const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        full_b[row][group] = Widen(T{}, HalfOf(warp.b[t][i / 2], i));
      }
    }
    for (int t = 0; t < 32; ++t) {
      for (int i = 0; i < 4; ++i) {
        const int row = (t >> 2) + (i < 2 ? 0 : 8);
        const int column = (t % 4) * 2 + (i & 1);
        float sum = warp.c[t][i];
        for (int k = 0; k < 16; ++k) sum += full_a[row][k] * full_b[k][column];
        warp.c[t][i] = sum;
      }
    }
  });
  std::copy_n(warp.c[lane], 4, c);
}

}  // namespace keras_mp::cuda

// WMMA leaves open which lane holds what. Here lane 0 holds all.
struct __half {
  unsigned short bits;
};

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

template <class Use, int kM, int kN, int kK, class T, class Layout = void>
struct fragment {
  static_assert(kM == 16 && kN == 16 && kK == 16);
  float x[16][16];
};

inline bool IsLaneZero() { return keras_mp::emulator::Machine::Get().lane() == 0; }

template <class Fragment>
void fill_fragment(Fragment& f, float value) {
  if (!IsLaneZero()) return;
  for (auto& row : f.x) std::fill(std::begin(row), std::end(row), value);
}

template <class Use, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, __half, Layout>& f, const __half* p,
                      unsigned pitch) {
  using namespace keras_mp::emulator;
  Check(IsAligned(p, 32) && pitch % 8 == 0, "wmma load: misaligned");
  Check(Machine::Get().IsShared(p, (15 * pitch + 16) * 2), "wmma load: outside");
  if (!IsLaneZero()) return;
  for (unsigned i = 0; i < 16; ++i) {
    for (unsigned j = 0; j < 16; ++j) {
      const bool is_row_major = std::is_same_v<Layout, row_major>;
      f.x[i][j] =
          keras_mp::HalfToFloat(p[is_row_major ? i * pitch + j : j * pitch + i].bits);
    }
  }
}

template <class D, class A, class B, class C>
void mma_sync(D& d, const A& a, const B& b, const C& c) {
  if (!IsLaneZero()) return;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float sum = c.x[i][j];
      for (int k = 0; k < 16; ++k) sum += a.x[i][k] * b.x[k][j];
      d.x[i][j] = sum;
    }
  }
}

template <class Fragment>
void store_matrix_sync(float* p, const Fragment& f, unsigned pitch, layout_t) {
  using namespace keras_mp::emulator;
  Check(IsAligned(p, 32) && pitch % 4 == 0, "wmma store: misaligned");
  Check(Machine::Get().IsShared(p, (15 * pitch + 16) * 4), "wmma store: outside");
  if (!IsLaneZero()) return;
  for (unsigned i = 0; i < 16; ++i) std::copy_n(f.x[i], 16, p + i * pitch);
}

}  // namespace nvcuda::wmma

#endif  // KERAS_MP_TESTS_CUDA_EMULATOR_H_
