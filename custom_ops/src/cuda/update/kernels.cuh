// The CUDA kernels of the update step: for the elements of many arrays at once
//
//   CheckKernel        to = gradient / scale;  the largest magnitude of `to`;  the sum of
//                      its squares by chunk, which SumKernel adds up
//   SyncMastersKernel  master = weight where the weight is not a rounding of the master
//   CastKernel         weight = round(master)
//   UpdateKernel       the rule of keras_mp/update.h on gradient, slots, master, weight;
//                      compressed_kernel.cuh has that for compressed ones
//
// All arrays are contiguous. A TensorList names them and cuts them into chunks; a block
// of kThreads threads works on one chunk, a thread on four neighbouring elements at a
// time, which it loads as one vector where their address is aligned. The kernels are
// compiled with --fmad=false (cmake/cuda.cmake): no multiply and add become one
// operation.
//
// Build and test without a GPU, thread by thread on the host:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cuda_emulated_test &&
//   build/cpp/update_cuda_emulated_test
// With a GPU:
//   cmake -S custom_ops -B build/cuda -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=ON &&
//   cmake --build build/cuda --target update_cuda_test && build/cuda/update_cuda_test

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

// Elements that a thread loads at once.
constexpr int kFour = 4;

// The operations on scalars that common/update_formulas.h is written in.
struct ThreadMachine {
  using Float = float;
  using Ints = int;
  using Words = unsigned;

  static __device__ __forceinline__ float Sqrt(float x) { return sqrtf(x); }
  static __device__ __forceinline__ float Min(float x, float y) { return x < y ? x : y; }
  static __device__ __forceinline__ float Max(float x, float y) { return x > y ? x : y; }
  static __device__ __forceinline__ float Truncate(float x) { return truncf(x); }
  static __device__ __forceinline__ float Exponent(float x) {
    return FromBits(Bits(x) & 0x7f800000u);
  }
  static __device__ __forceinline__ bool Differ(float x, float y) {
    return Bits(x) != Bits(y);
  }
  static __device__ __forceinline__ unsigned Bits(float x) { return BitsOf(x); }
  static __device__ __forceinline__ float FromBits(unsigned bits) {
    return keras_mp::FromBits(bits);
  }
  static __device__ __forceinline__ int AsInts(unsigned x) { return static_cast<int>(x); }
  static __device__ __forceinline__ unsigned AsWords(int x) {
    return static_cast<unsigned>(x);
  }
  static __device__ __forceinline__ float ToFloat(int x) { return static_cast<float>(x); }
};

using Formulas = UpdateFormulas<ThreadMachine>;

template <class Format>
struct GridOf;
template <>
struct GridOf<Half> : HalfGrid {};
template <>
struct GridOf<Bfloat16> : Bfloat16Grid {};

// Up to four neighbouring elements of an array: `count` of them from index `at`, a
// multiple of four.
struct Span {
  Index at;
  int count;
};

// Four elements as one vector.
__device__ __forceinline__ float4 Pack(const float (&x)[kFour]) {
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ ushort4 Pack(const Bits16 (&x)[kFour]) {
  return make_ushort4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ uchar4 Pack(const unsigned char (&x)[kFour]) {
  return make_uchar4(x[0], x[1], x[2], x[3]);
}

template <class Number>
using Packed = decltype(Pack(std::declval<const Number (&)[kFour]>()));

// Whether the elements can be loaded or stored as one vector.
template <class Number>
__device__ __forceinline__ bool IsPacked(const Number* array, Span span) {
  return span.count == kFour &&
         reinterpret_cast<std::uintptr_t>(array) % sizeof(Packed<Number>) == 0;
}

// Loads the elements of the span; those beyond its count are 0.
template <class Number>
__device__ __forceinline__ void Read(const Number* array, Span span,
                                     Number (&to)[kFour]) {
  const Number* from = array + span.at;
  if (IsPacked(array, span)) {
    const auto packed = LoadWhole(reinterpret_cast<const Packed<Number>*>(from));
    to[0] = packed.x;
    to[1] = packed.y;
    to[2] = packed.z;
    to[3] = packed.w;
  } else {
#pragma unroll
    for (int i = 0; i < kFour; ++i) to[i] = i < span.count ? from[i] : Number{};
  }
}

template <class Number>
__device__ __forceinline__ void Write(Number* array, Span span,
                                      const Number (&from)[kFour]) {
  Number* to = array + span.at;
  if (IsPacked(array, span)) {
    StoreWhole(reinterpret_cast<Packed<Number>*>(to), Pack(from));
  } else {
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      if (i < span.count) to[i] = from[i];
    }
  }
}

// Calls work(format) with the format of a 16-bit type.
template <class Work>
__device__ __forceinline__ void InFormat(DataType type, const Work& work) {
  type == DataType::kHalf ? work(Half{}) : work(Bfloat16{});
}

__device__ __forceinline__ void ReadGradient(const Gradient& gradient, Span span,
                                             float (&to)[kFour]) {
  if (gradient.type == DataType::kFloat) {
    Read(static_cast<const float*>(gradient.values), span, to);
    return;
  }
  Bits16 bits[kFour];
  Read(static_cast<const Bits16*>(gradient.values), span, bits);
  InFormat(gradient.type, [&](auto format) {
#pragma unroll
    for (int i = 0; i < kFour; ++i) to[i] = Widen(format, bits[i]);
  });
}

template <class Format>
__device__ __forceinline__ Bits16 RoundNearest(Format format, float master) {
  return Round(format, Formulas::Clip(master, GridOf<Format>::kLargest));
}

__device__ __forceinline__ void SyncMasters(const MasterPair& pair, Span span,
                                            Rounding rounding,
                                            float (&masters)[kFour]) {
  Bits16 bits[kFour];
  Read(pair.weight, span, bits);
  InFormat(pair.type, [&](auto format) {
    using Format = decltype(format);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const float master = masters[i], weight = Widen(format, bits[i]);
      if (rounding == Rounding::kNearest) {
        const float nearest = Widen(format, RoundNearest(format, master));
        masters[i] = Formulas::SyncNearest(master, nearest, weight);
      } else {
        masters[i] = Formulas::SyncStochastic<GridOf<Format>>(master, weight);
      }
    }
  });
}

// Rounds to nearest even where `uniforms` is null, else stochastically.
__device__ __forceinline__ void Cast(const MasterPair& pair, Span span,
                                     const float* uniforms,
                                     const float (&masters)[kFour]) {
  float uniform[kFour] = {};
  if (uniforms != nullptr) Read(uniforms, span, uniform);
  Bits16 bits[kFour];
  InFormat(pair.type, [&](auto format) {
    using Grid = GridOf<decltype(format)>;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const float master = masters[i];
      bits[i] = uniforms == nullptr
                    ? RoundNearest(format, master)
                    : Round(format, Formulas::RoundStochastic<Grid>(master, uniform[i]));
    }
  });
  Write(pair.weight, span, bits);
}

// Calls work(entry, span) for the elements that this thread works on. With kTogether all
// threads of the block call it as often; some spans are empty then.
template <bool kTogether = false, class Entry, class Work>
__device__ __forceinline__ void ForSpans(const TensorList<Entry>& list,
                                         const Work& work) {
  const int chunk = static_cast<int>(blockIdx.x);
  // The array of the chunk: the last whose first chunk is not greater than `chunk`.
  int array = 0, end = list.count;
  while (end - array > 1) {
    const int middle = (array + end) / 2;
    (list.first_chunk[middle] <= chunk ? array : end) = middle;
  }
  const Entry& entry = list.entries[array];
  const Index size = SizeOf(entry);
  const Index begin = static_cast<Index>(chunk - list.first_chunk[array]) * kChunkSize;
#pragma unroll 1
  for (int i = 0; i < kChunkSize; i += kThreads * kFour) {
    const Index at = begin + i + static_cast<int>(threadIdx.x) * kFour;
    if ((kTogether ? begin + i : at) >= size) return;
    const Index count = size - at < kFour ? size - at : kFour;
    work(entry, Span{at, static_cast<int>(count > 0 ? count : 0)});
  }
}

// Combines `value` of all threads of the block, in the same order each time. Returns the
// result to the first thread.
template <class Number, class Combine>
__device__ __forceinline__ Number ReduceBlock(Number value, const Combine& combine) {
  Number* const values = reinterpret_cast<Number*>(SharedMemory());
  SyncThreads();  // the first thread has the result of an earlier call
  values[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    SyncThreads();
    if (threadIdx.x < half) {
      values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    }
  }
  return values[threadIdx.x];
}

__device__ __forceinline__ double SumOfBlock(double value) {
  return ReduceBlock(value, [](double x, double y) { return x + y; });
}

// Of the bits of magnitudes, which have their order; those of NaN come last.
__device__ __forceinline__ unsigned LargestOfBlock(unsigned bits) {
  return ReduceBlock(bits, [](unsigned x, unsigned y) { return x > y ? x : y; });
}

struct CheckArguments {
  TensorList<CheckEntry> list;
  const float* scale;
  double* sums;  // [chunks], or null
};

__global__ void __launch_bounds__(kThreads) CheckKernel(const CheckArguments a) {
  const Formulas::Unscaling unscaled(*a.scale);
  float sum_of_squares = 0;  // of kChunkSize / kThreads elements
  unsigned largest = 0;
  float* largest_of_array = nullptr;
  ForSpans(a.list, [&](const CheckEntry& entry, Span span) {
    float g[kFour];
    ReadGradient(entry.gradient, span, g);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      g[i] = unscaled(g[i]);
      const unsigned magnitude = BitsOf(g[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
      sum_of_squares += g[i] * g[i];
    }
    if (entry.to != nullptr) Write(entry.to, span, g);
    largest_of_array = entry.largest;
  });
  largest = LargestOfBlock(largest);
  // The first thread of a block has an element: no chunk is empty. Other blocks may work
  // on the same array.
  if (threadIdx.x == 0) AtomicMax(reinterpret_cast<unsigned*>(largest_of_array), largest);
  if (a.sums == nullptr) return;
  const double sum = SumOfBlock(sum_of_squares);
  if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

struct SumArguments {
  const double* sums;
  Index count;
  float* sum;
};

// Launched with one block.
__global__ void __launch_bounds__(kThreads) SumKernel(const SumArguments a) {
  double of_thread = 0;
  for (Index i = threadIdx.x; i < a.count; i += kThreads) of_thread += a.sums[i];
  const double sum = SumOfBlock(of_thread);
  if (threadIdx.x == 0) *a.sum = static_cast<float>(sum);
}

struct PairsArguments {
  TensorList<PairEntry> list;
  Rounding rounding;
};

__global__ void __launch_bounds__(kThreads) SyncMastersKernel(const PairsArguments a) {
  ForSpans(a.list, [&](const PairEntry& entry, Span span) {
    float masters[kFour];
    Read(entry.pair.master, span, masters);
    SyncMasters(entry.pair, span, a.rounding, masters);
    Write(entry.pair.master, span, masters);
  });
}

__global__ void __launch_bounds__(kThreads) CastKernel(const PairsArguments a) {
  ForSpans(a.list, [&](const PairEntry& entry, Span span) {
    float masters[kFour];
    Read(entry.pair.master, span, masters);
    Cast(entry.pair, span, entry.uniforms, masters);
  });
}

template <class Entry>
struct UpdateArguments {
  TensorList<Entry> list;
  Rounding rounding;
  const UpdateHyperparameters* hyperparameters;
  const bool* finite;  // or null
};

// Updates four masters and their slots by their gradients.
template <UpdateRule kRule>
__device__ __forceinline__ void StepFour(const UpdateHyperparameters& hyperparameters,
                                         bool apply_weight_decay,
                                         const Formulas::Unscaling& unscaled,
                                         const float (&g)[kFour], float (&w)[kFour],
                                         float (&slots)[kMostSlots][kFour]) {
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    float s[kMostSlots] = {slots[0][i], slots[1][i], slots[2][i]};
    const float clipped = Formulas::Clipped(hyperparameters, unscaled(g[i]));
    Formulas::Step<kRule>(hyperparameters, apply_weight_decay, clipped,
                          Formulas::Power<kRule>(clipped), w[i], s);
#pragma unroll
    for (int k = 0; k < kSlotsOf<kRule>; ++k) slots[k][i] = s[k];
  }
}

template <UpdateRule kRule>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const UpdateArguments<UpdateEntry> a) {
  constexpr int kSlots = kSlotsOf<kRule>;
  if (a.finite != nullptr && !*a.finite) return;
  const UpdateHyperparameters hyperparameters = *a.hyperparameters;
  const Formulas::Unscaling unscaled(hyperparameters.scale);
  ForSpans(a.list, [&](const UpdateEntry& parameter, Span span) {
    const MasterPair& pair = parameter.pair;
    float g[kFour], w[kFour], slots[kMostSlots][kFour] = {};
    ReadGradient(parameter.gradient, span, g);
    Read(pair.master, span, w);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) Read(parameter.slots[k], span, slots[k]);
    if (pair.weight != nullptr) SyncMasters(pair, span, a.rounding, w);
    StepFour<kRule>(hyperparameters, parameter.apply_weight_decay, unscaled, g, w, slots);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) Write(parameter.slots[k], span, slots[k]);
    Write(pair.master, span, w);
    if (pair.weight != nullptr) Cast(pair, span, parameter.uniforms, w);
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_KERNELS_CUH_
