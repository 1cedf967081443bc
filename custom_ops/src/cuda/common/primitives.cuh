// 16-bit conversions, vector loads and stores, an atomic maximum, shuffles, barriers and
// shared memory of a CUDA device. tests/cuda/emulator.h has the same functions for the host.

#ifndef KERAS_MP_SRC_CUDA_COMMON_PRIMITIVES_CUH_
#define KERAS_MP_SRC_CUDA_COMMON_PRIMITIVES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/types.h"

namespace keras_mp::cuda {

// Element types, as template arguments.
struct Half {};
struct Bfloat16 {};

__device__ __forceinline__ float Widen(Half, Bits16 bits) {
  return __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ float Widen(Bfloat16, Bits16 bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}

// Rounds to nearest even; overflows to inf.
__device__ __forceinline__ Bits16 Round(Half, float x) {
  return __half_as_ushort(__float2half_rn(x));
}
__device__ __forceinline__ Bits16 Round(Bfloat16, float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Loads or stores a vector by one instruction; the compiler may split a plain assignment.
template <class Vector>
__device__ __forceinline__ Vector LoadWhole(const Vector* from) {
  return *from;
}
template <class Vector>
__device__ __forceinline__ void StoreWhole(Vector* to, Vector x) {
  __stwb(to, x);
}

// *to = max(*to, x)
__device__ __forceinline__ void AtomicMax(unsigned* to, unsigned x) {
  atomicMax(to, x);
}

// The largest x of each eight neighbouring lanes. All lanes of the warp have to call it.
__device__ __forceinline__ unsigned LargestOfEight(unsigned x) {
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

// The x of the lane whose number differs in the bits of `distance`. All lanes of the warp
// have to call it.
__device__ __forceinline__ float ShuffleXor(float x, int distance) {
  return __shfl_xor_sync(0xffffffffu, x, distance);
}

__device__ __forceinline__ void SyncThreads() { __syncthreads(); }
__device__ __forceinline__ void SyncWarp() { __syncwarp(); }

// The dynamic shared memory of the block.
__device__ __forceinline__ unsigned char* SharedMemory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_COMMON_PRIMITIVES_CUH_
