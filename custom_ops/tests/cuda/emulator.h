// Compiles and runs the CUDA kernels of src/cuda on the host: the same source, with the
// functions of cuda/common/primitives.cuh and cuda/gemm/primitives.cuh written after the
// PTX ISA, on the machine of emulator_machine.h. It is slow, and no model of time. It
// finds wrong indices, missing barriers, reads of uninitialized memory, misaligned
// addresses and bank conflicts of ldmatrix.

#ifndef KERAS_MP_TESTS_CUDA_EMULATOR_H_
#define KERAS_MP_TESTS_CUDA_EMULATOR_H_

#include <math.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/half.h"
#include "cuda/common/types.h"
#include "cuda/emulator_machine.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

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
struct alignas(4) uchar4 {
  unsigned char x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
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
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z,
                         unsigned char w) {
  return {x, y, z, w};
}
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }

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
inline void AtomicMax(unsigned* to, unsigned x) { *to = std::max(*to, x); }
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
inline unsigned LargestOfEight(unsigned x) {
  auto& machine = emulator::Machine::Get();
  emulator::Warp& warp = machine.CurrentWarp();
  const int lane = machine.lane();
  warp.operation[lane] = 4;
  warp.a[lane][0] = x;
  machine.Wait(warp.barrier, [&] {
    CheckSameOperation(warp);
    for (int eight = 0; eight < 32; eight += 8) {
      unsigned largest = 0;
      for (int t = eight; t < eight + 8; ++t) largest = std::max(largest, warp.a[t][0]);
      for (int t = eight; t < eight + 8; ++t) warp.a[t][0] = largest;
    }
  });
  return warp.a[lane][0];
}
inline float ShuffleXor(float x, int distance) {
  auto& machine = emulator::Machine::Get();
  emulator::Warp& warp = machine.CurrentWarp();
  const int lane = machine.lane();
  warp.operation[lane] = 5 + distance;
  warp.c[lane][0] = x;
  machine.Wait(warp.barrier, [&] {
    CheckSameOperation(warp);
    for (int t = 0; t < 32; ++t) warp.c[t][1] = warp.c[t ^ distance][0];
  });
  return warp.c[lane][1];
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

// WMMA does not specify which lane holds which element. Here lane 0 holds all of them.
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
