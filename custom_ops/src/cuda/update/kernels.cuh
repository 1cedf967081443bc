// The CUDA kernels of the update step. A block takes a piece of one array, a thread four
// neighbours of it at a time. Nothing is contracted: see cmake/cuda.cmake.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_KERNELS_CUH_
#define KERAS_MP_SRC_CUDA_UPDATE_KERNELS_CUH_

#include <math.h>

#include <cstdint>
#include <utility>

#include "cuda/update/tensor_list.h"
#include "common/update_formulas.h"
#ifdef __CUDACC__
#include "cuda/common/primitives.cuh"
#endif

namespace keras_mp::cuda {

constexpr int kFour = 4;

// What common/update_formulas.h asks of a number.
struct ThreadMachine {
  using Float = float;

  static __device__ __forceinline__ float Sqrt(float x) { return sqrtf(x); }
  static __device__ __forceinline__ float Truncate(float x) { return truncf(x); }
  static __device__ __forceinline__ float Exponent(float x) {
    return FromBits(BitsOf(x) & 0x7f800000u);
  }
  static __device__ __forceinline__ bool Differ(float x, float y) {
    return BitsOf(x) != BitsOf(y);
  }
};

using Formulas = UpdateFormulas<ThreadMachine>;

template <class Format>
struct GridOf;
template <>
struct GridOf<Half> : HalfGrid {};
template <>
struct GridOf<Bfloat16> : Bfloat16Grid {};

// Up to four neighbours of an array: `count` numbers from `at`.
struct Place {
  Index at;
  int count;
};

// The same four as one number of the machine.
__device__ __forceinline__ float4 Pack(const float (&x)[kFour]) {
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ ushort4 Pack(const Bits16 (&x)[kFour]) {
  return make_ushort4(x[0], x[1], x[2], x[3]);
}

template <class Number>
using Packed = decltype(Pack(std::declval<const Number (&)[kFour]>()));

// Whether all four can be moved at once.
template <class Number>
__device__ __forceinline__ bool IsPacked(const Number* array, Place place) {
  return place.count == kFour &&
         reinterpret_cast<std::uintptr_t>(array) % sizeof(Packed<Number>) == 0;
}

// Numbers behind the array are read as 0.
template <class Number>
__device__ __forceinline__ void Read(const Number* array, Place place,
                                     Number (&to)[kFour]) {
  const Number* from = array + place.at;
  if (IsPacked(array, place)) {
    const auto packed = LoadWhole(reinterpret_cast<const Packed<Number>*>(from));
    to[0] = packed.x;
    to[1] = packed.y;
    to[2] = packed.z;
    to[3] = packed.w;
  } else {
#pragma unroll
    for (int i = 0; i < kFour; ++i) to[i] = i < place.count ? from[i] : Number{};
  }
}

template <class Number>
__device__ __forceinline__ void Write(Number* array, Place place,
                                      const Number (&numbers)[kFour]) {
  Number* to = array + place.at;
  if (IsPacked(array, place)) {
    StoreWhole(reinterpret_cast<Packed<Number>*>(to), Pack(numbers));
  } else {
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      if (i < place.count) to[i] = numbers[i];
    }
  }
}

// Calls work(format) for a 16-bit type.
template <class Work>
__device__ __forceinline__ void InFormat(DataType type, const Work& work) {
  type == DataType::kHalf ? work(Half{}) : work(Bfloat16{});
}

__device__ __forceinline__ void ReadGradient(const Gradient& gradient, Place place,
                                             float (&to)[kFour]) {
  if (gradient.type == DataType::kFloat) {
    Read(static_cast<const float*>(gradient.values), place, to);
    return;
  }
  Bits16 bits[kFour];
  Read(static_cast<const Bits16*>(gradient.values), place, bits);
  InFormat(gradient.type, [&](auto format) {
#pragma unroll
    for (int i = 0; i < kFour; ++i) to[i] = Widen(format, bits[i]);
  });
}

template <class Format>
__device__ __forceinline__ Bits16 RoundNearest(Format format, float master) {
  return Round(format, Formulas::Clip(master, GridOf<Format>::kLargest));
}

__device__ __forceinline__ void Follow(const MasterPair& pair, Place place,
                                       Rounding rounding, float (&masters)[kFour]) {
  Bits16 bits[kFour];
  Read(pair.weight, place, bits);
  InFormat(pair.type, [&](auto format) {
    using Format = decltype(format);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const float master = masters[i], weight = Widen(format, bits[i]);
      masters[i] =
          rounding == Rounding::kNearest
              ? Formulas::FollowNearest(master, Widen(format, RoundNearest(format, master)),
                                        weight)
              : Formulas::FollowStochastic<GridOf<Format>>(master, weight);
    }
  });
}

// Nearest where `uniforms` is null.
__device__ __forceinline__ void Cast(const MasterPair& pair, Place place,
                                     const float* uniforms,
                                     const float (&masters)[kFour]) {
  float uniform[kFour] = {};
  if (uniforms != nullptr) Read(uniforms, place, uniform);
  Bits16 bits[kFour];
  InFormat(pair.type, [&](auto format) {
    using Grid = GridOf<decltype(format)>;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      bits[i] = uniforms == nullptr
                    ? RoundNearest(format, masters[i])
                    : Round(format, Formulas::RoundStochastic<Grid>(masters[i], uniform[i]));
    }
  });
  Write(pair.weight, place, bits);
}

// Calls work(entry, place) for what this thread is to do.
template <class Entry, class Work>
__device__ __forceinline__ void ForPlaces(const Table<Entry>& table, const Work& work) {
  const int piece = static_cast<int>(blockIdx.x);
  int first = 0, end = table.count;  // the last entry that begins at `piece` or before
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    (table.first_piece[middle] <= piece ? first : end) = middle;
  }
  const Entry& entry = table.entries[first];
  const Index size = SizeOf(entry);
  const Index begin = static_cast<Index>(piece - table.first_piece[first]) * kPiece;
#pragma unroll 1
  for (int i = 0; i < kPiece; i += kThreads * kFour) {
    const Index at = begin + i + static_cast<int>(threadIdx.x) * kFour;
    if (at >= size) return;
    work(entry, Place{at, static_cast<int>(size - at < kFour ? size - at : kFour)});
  }
}

// The sum of all threads of the block, to the first of them; 0 to the others. Always the
// same tree.
__device__ __forceinline__ double SumOfBlock(double mine) {
  double* const sums = reinterpret_cast<double*>(SharedMemory());
  sums[threadIdx.x] = mine;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    SyncThreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return threadIdx.x == 0 ? sums[0] : 0;
}

struct CheckArguments {
  Table<CheckEntry> table;
  const float* scale;
  double* squares;  // [pieces], or null
};

__global__ void __launch_bounds__(kThreads) CheckKernel(const CheckArguments a) {
  const Formulas::Unscaling unscaled(*a.scale);
  float squares = 0;  // of kPiece / kThreads numbers
  ForPlaces(a.table, [&](const CheckEntry& entry, Place place) {
    float g[kFour];
    ReadGradient(entry.gradient, place, g);
    bool overflow = false;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      g[i] = unscaled(g[i]);
      overflow |= (BitsOf(g[i]) & 0x7f800000u) == 0x7f800000u;
      squares += g[i] * g[i];
    }
    if (entry.to != nullptr) Write(entry.to, place, g);
    // Other threads may say so at the same time.
    if (overflow) *entry.overflow = true;
  });
  if (a.squares == nullptr) return;
  const double sum = SumOfBlock(squares);
  if (threadIdx.x == 0) a.squares[blockIdx.x] = sum;
}

struct SumArguments {
  const double* numbers;
  Index count;
  float* sum;
};

// One block.
__global__ void __launch_bounds__(kThreads) SumKernel(const SumArguments a) {
  double mine = 0;
  for (Index i = threadIdx.x; i < a.count; i += kThreads) mine += a.numbers[i];
  const double sum = SumOfBlock(mine);
  if (threadIdx.x == 0) *a.sum = static_cast<float>(sum);
}

struct PairsArguments {
  Table<PairEntry> table;
  Rounding rounding;
};

__global__ void __launch_bounds__(kThreads) FollowKernel(const PairsArguments a) {
  ForPlaces(a.table, [&](const PairEntry& entry, Place place) {
    float masters[kFour];
    Read(entry.pair.master, place, masters);
    Follow(entry.pair, place, a.rounding, masters);
    Write(entry.pair.master, place, masters);
  });
}

__global__ void __launch_bounds__(kThreads) CastKernel(const PairsArguments a) {
  ForPlaces(a.table, [&](const PairEntry& entry, Place place) {
    float masters[kFour];
    Read(entry.pair.master, place, masters);
    Cast(entry.pair, place, entry.uniforms, masters);
  });
}

struct UpdateArguments {
  Table<Parameter> table;
  Rounding rounding;
  const UpdateNumbers* numbers;
  const bool* finite;  // or null
};

template <UpdateRule kRule>
__global__ void __launch_bounds__(kThreads) UpdateKernel(const UpdateArguments a) {
  constexpr int kSlots = kSlotsOf<kRule>;
  if (a.finite != nullptr && !*a.finite) return;
  const UpdateNumbers numbers = *a.numbers;
  const Formulas::Unscaling unscaled(numbers.scale);
  ForPlaces(a.table, [&](const Parameter& parameter, Place place) {
    const MasterPair& pair = parameter.pair;
    float g[kFour], w[kFour], slots[kMostSlots][kFour] = {};
    ReadGradient(parameter.gradient, place, g);
    Read(pair.master, place, w);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) Read(parameter.slots[k], place, slots[k]);
    if (pair.weight != nullptr) Follow(pair, place, a.rounding, w);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      float s[kMostSlots] = {slots[0][i], slots[1][i], slots[2][i]};
      Formulas::Step<kRule>(numbers, parameter.decays, unscaled(g[i]), w[i], s);
#pragma unroll
      for (int k = 0; k < kSlots; ++k) slots[k][i] = s[k];
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) Write(parameter.slots[k], place, slots[k]);
    Write(pair.master, place, w);
    if (pair.weight != nullptr) Cast(pair, place, parameter.uniforms, w);
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_KERNELS_CUH_
