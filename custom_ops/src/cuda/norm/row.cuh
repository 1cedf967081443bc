// Rows of matrices, as the CUDA kernels of cuda/norm read, reduce and write them.
//
// A team of threads works on a row: a warp, or a block where a row is longer. A thread
// takes eight neighbouring elements at a time, 16 bytes of a 16-bit matrix, as one vector
// where every row begins at a multiple of 16 bytes. Rows of up to kHeld elements for each
// thread stay in its registers, so that memory is read once; longer rows are read again.

#ifndef KERAS_MP_SRC_CUDA_NORM_ROW_CUH_
#define KERAS_MP_SRC_CUDA_NORM_ROW_CUH_

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "common/half.h"
#include "cuda/common/types.h"
#ifdef __CUDACC__
#include "cuda/common/primitives.cuh"
#endif

namespace keras_mp::cuda {

constexpr int kWarp = 32;
constexpr int kBlock = 256;  // threads
constexpr int kBlockWarps = kBlock / kWarp;
constexpr int kEight = 8;         // elements that a thread loads at once
constexpr int kHeldVectors = 4;   // of eight elements, in the registers of a thread
constexpr int kHeld = kHeldVectors * kEight;

// An element type, beside Half and Bfloat16.
struct Float {};

__device__ __forceinline__ float Infinity() { return FromBits(0x7f800000u); }

// The threads that work on one row: kThreads is kWarp or kBlock.
template <int kThreads>
struct Team {
  static __device__ __forceinline__ Index Row() {
    const Index block = blockIdx.x;
    return kThreads == kBlock ? block
                              : block * kBlockWarps + static_cast<int>(threadIdx.x) / kWarp;
  }

  // The number of this thread in its team.
  static __device__ __forceinline__ int Rank() {
    return static_cast<int>(threadIdx.x) % kThreads;
  }

  // Combines the x of all threads of the team, in the same order each time. All of them
  // call it and get the result. A block has kBlockWarps floats of shared memory for it.
  template <class Combine>
  static __device__ __forceinline__ float Reduce(float x, const Combine& combine) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      x = combine(x, ShuffleXor(x, distance));
    }
    if (kThreads == kWarp) return x;
    float* const of_warps = reinterpret_cast<float*>(SharedMemory());
    SyncThreads();  // all threads have the result of an earlier call
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
    SyncThreads();
    float result = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < kBlockWarps; ++warp) {
      result = combine(result, of_warps[warp]);
    }
    return result;
  }

  static __device__ __forceinline__ float Sum(float x) {
    return Reduce(x, [](float a, float b) { return a + b; });
  }

  // Ignores NaN.
  static __device__ __forceinline__ float Max(float x) {
    return Reduce(x, [](float a, float b) { return fmaxf(a, b); });
  }
};

// Eight elements as they are in memory.
template <class Format>
struct Eight {
  using Element = Bits16;

  static __device__ __forceinline__ Eight LoadPacked(const Bits16* from) {
    return {LoadWhole(reinterpret_cast<const uint4*>(from))};
  }
  static __device__ __forceinline__ Eight LoadEach(const Bits16* from, int count) {
    unsigned bits[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) bits[i] = i < count ? from[i] : 0;
    return {make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                       bits[4] | bits[5] << 16, bits[6] | bits[7] << 16)};
  }
  static __device__ __forceinline__ Eight Of(const float (&x)[kEight]) {
    unsigned bits[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) bits[i] = Round(Format{}, x[i]);
    return {make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                       bits[4] | bits[5] << 16, bits[6] | bits[7] << 16)};
  }
  __device__ __forceinline__ void StorePacked(Bits16* to) const {
    StoreWhole(reinterpret_cast<uint4*>(to), words);
  }
  __device__ __forceinline__ void StoreEach(Bits16* to, int count) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i < count) to[i] = At(i);
    }
  }
  __device__ __forceinline__ void WidenTo(float (&x)[kEight]) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = Widen(Format{}, At(i));
  }

  __device__ __forceinline__ Bits16 At(int i) const {
    const unsigned word =
        i < 4 ? (i < 2 ? words.x : words.y) : (i < 6 ? words.z : words.w);
    return static_cast<Bits16>(i % 2 ? word >> 16 : word & 0xffffu);
  }

  uint4 words;
};

template <>
struct Eight<Float> {
  using Element = float;

  static __device__ __forceinline__ Eight LoadPacked(const float* from) {
    const auto* vectors = reinterpret_cast<const float4*>(from);
    return {LoadWhole(vectors), LoadWhole(vectors + 1)};
  }
  static __device__ __forceinline__ Eight LoadEach(const float* from, int count) {
    float x[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = i < count ? from[i] : 0;
    return Of(x);
  }
  static __device__ __forceinline__ Eight Of(const float (&x)[kEight]) {
    return {make_float4(x[0], x[1], x[2], x[3]), make_float4(x[4], x[5], x[6], x[7])};
  }
  __device__ __forceinline__ void StorePacked(float* to) const {
    auto* vectors = reinterpret_cast<float4*>(to);
    StoreWhole(vectors, low);
    StoreWhole(vectors + 1, high);
  }
  __device__ __forceinline__ void StoreEach(float* to, int count) const {
    float x[kEight];
    WidenTo(x);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i < count) to[i] = x[i];
    }
  }
  __device__ __forceinline__ void WidenTo(float (&x)[kEight]) const {
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }

  float4 low, high;
};

// A row of a packed matrix, from which or to which a thread moves eight elements.
// `Pointer` is to the elements, const or not.
template <class Format, class Pointer>
class Row {
 public:
  using Element = typename Eight<Format>::Element;

  __device__ __forceinline__ Row(Pointer matrix, Index row, Index size)
      : at_(matrix + row * size),
        size_(size),
        is_packed_(size % kEight == 0 &&
                   reinterpret_cast<std::uintptr_t>(matrix) % sizeof(uint4) == 0) {}

  // Those beyond the row are 0.
  __device__ __forceinline__ Eight<Format> Load(Index first) const {
    return is_packed_ ? Eight<Format>::LoadPacked(at_ + first)
                      : Eight<Format>::LoadEach(at_ + first, CountAt(first));
  }
  __device__ __forceinline__ void Store(Index first, const float (&x)[kEight]) const {
    const auto eight = Eight<Format>::Of(x);
    is_packed_ ? eight.StorePacked(at_ + first)
               : eight.StoreEach(at_ + first, CountAt(first));
  }

  // Elements of the row among the eight from `first` on.
  __device__ __forceinline__ int CountAt(Index first) const {
    return size_ - first < kEight ? static_cast<int>(size_ - first) : kEight;
  }

 private:
  Pointer at_;
  Index size_;
  bool is_packed_;
};

template <class Format>
using RowToRead = Row<Format, const typename Eight<Format>::Element*>;
template <class Format>
using RowToWrite = Row<Format, typename Eight<Format>::Element*>;

template <class Format>
__device__ __forceinline__ RowToRead<Format> ReadRow(const void* matrix, Index row,
                                                     Index size) {
  return {static_cast<const typename Eight<Format>::Element*>(matrix), row, size};
}
template <class Format>
__device__ __forceinline__ RowToWrite<Format> WriteRow(void* matrix, Index row,
                                                       Index size) {
  return {static_cast<typename Eight<Format>::Element*>(matrix), row, size};
}

// The same row of one or two matrices, and the reductions of a team over it.
template <class Format, int kTeam, bool kIsHeld, int kMatrices>
class RowsOfTeam {
 public:
  using Numbers = float[kMatrices][kEight];

  // `other`: the second matrix.
  __device__ __forceinline__ RowsOfTeam(Index row, Index size, const void* matrix,
                                        const void* other = nullptr)
      : rows_{ReadRow<Format>(matrix, row, size),
              ReadRow<Format>(kMatrices == 2 ? other : matrix, row, size)},
        size_(size) {
    if constexpr (kIsHeld) {
#pragma unroll
      for (int k = 0; k < kHeldVectors; ++k) {
        if (FirstOf(k) >= size_) continue;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) held_[m][k] = rows_[m].Load(FirstOf(k));
      }
    }
  }

  // Calls work(first, count, numbers) for each eight elements of this thread. `count` are
  // in the row, and the other numbers 0.
  template <class Work>
  __device__ __forceinline__ void ForEach(const Work& work) const {
    if constexpr (kIsHeld) {
#pragma unroll
      for (int k = 0; k < kHeldVectors; ++k) {
        if (FirstOf(k) >= size_) continue;
        Numbers x;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) held_[m][k].WidenTo(x[m]);
        work(FirstOf(k), rows_[0].CountAt(FirstOf(k)), x);
      }
    } else {
#pragma unroll 1
      for (Index first = FirstOf(0); first < size_; first += kTeam * kEight) {
        Numbers x;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) rows_[m].Load(first).WidenTo(x[m]);
        work(first, rows_[0].CountAt(first), x);
      }
    }
  }

  // The sums over the row of what add(first, i, numbers, sums) adds to sums for each
  // element first + i. The numbers of held rows are added in FP32, at most kHeld of them;
  // of longer rows the sums of each eight in double.
  template <int kSums, class Add>
  __device__ __forceinline__ void Sum(const Add& add, float (&totals)[kSums]) const {
    std::conditional_t<kIsHeld, float, double> of_thread[kSums] = {};
    ForEach([&](Index first, int count, const Numbers& x) {
      float of_eight[kSums] = {};
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (i < count) add(first, i, x, of_eight);
      }
#pragma unroll
      for (int s = 0; s < kSums; ++s) of_thread[s] += of_eight[s];
    });
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      totals[s] = Team<kTeam>::Sum(static_cast<float>(of_thread[s]));
    }
  }

 private:
  // The first element of the k-th eight of this thread.
  static __device__ __forceinline__ Index FirstOf(int k) {
    return static_cast<Index>(k * kTeam + Team<kTeam>::Rank()) * kEight;
  }

  RowToRead<Format> rows_[2];
  Index size_;
  Eight<Format> held_[kMatrices][kIsHeld ? kHeldVectors : 1];
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_ROW_CUH_
