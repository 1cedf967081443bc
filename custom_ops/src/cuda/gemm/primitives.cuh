// PTX instructions of sm_80 and up as functions: cp.async, ldmatrix and mma.sync.
// tests/cuda/emulator.h has the same functions for the host.

#ifndef KERAS_MP_SRC_CUDA_GEMM_PRIMITIVES_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_PRIMITIVES_CUH_

#include "cuda/common/primitives.cuh"

namespace keras_mp::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

__device__ __forceinline__ unsigned SharedAddress(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Starts to copy kBytes: 4, 8 or 16, to which both addresses are aligned. Only the first
// `valid` bytes are read; the others become zero.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, int valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                     SharedAddress(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(
                     SharedAddress(shared)),
                 "l"(__cvta_generic_to_global(global)), "n"(kBytes), "r"(valid)
                 : "memory");
  }
}

// Makes the copies since the last commit one group.
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most kPending groups of this thread have not arrived.
template <int kPending>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Loads four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8. A lane
// gets two neighbouring elements of each matrix or its transpose: row lane / 4, columns 2
// * (lane % 4) and 2 * (lane % 4) + 1.
template <bool kTranspose>
__device__ __forceinline__ void LoadMatrices(const void* row, unsigned (&r)[4]) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(SharedAddress(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(SharedAddress(row))
                 : "memory");
  }
}

// c += a * b for 16x16 times 16x8, in FP32.
//
// The rounding is not documented. By Fasi, Higham, Mikaitis and Pranesh ("Numerical
// behavior of NVIDIA tensor cores", PeerJ Computer Science, 2021), tensor cores add g
// products and the sum so far at once: g is 4 on Volta and larger later. They align the
// g + 1 terms to the largest, cut them off at its 24th bit or below, add them exactly, and
// cut off the result at 24 bits. With S = sum |a| |b| over all of k no term and no sum is
// larger than S, as cutting off makes nothing larger. So a cut errs by less than 2^-23 S,
// and the largest term is not cut: an element errs by less than 2^-23 S for each of its k
// products and for each of the ceil(k / g) results, but one, as the first sum is 0:
//
//   (k + ceil(k / 4) - 1) 2^-23 S  <=  5/4 k 2^-23 S  =  5/2 k 2^-24 S
//
// A split of k, of 64 or more, adds another rounding to nearest, 2^-24 S, and its own part
// of this bound; the k / 64 splits stay within 3 k 2^-24 S.
__device__ __forceinline__ void MultiplyAdd(Half, float (&c)[4], const unsigned (&a)[4],
                                            unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MultiplyAdd(Bfloat16, float (&c)[4],
                                            const unsigned (&a)[4], unsigned b0,
                                            unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif  // sm_80

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_PRIMITIVES_CUH_
