// The CUDA kernels of sums in two stages, each in the same order every time:
//
//   ColumnSumsKernel  of matrices [slices, rows, columns] over parts of the rows
//   RowSumsKernel     of a matrix [rows, size] over parts of each row
//   FinishKernel      over the parts, in double
//
// Each element contributes a Term: itself (the sum of keras_mp/sum.h), the square of its
// distance from a mean, or its parts of the gradients of gamma and beta (row_norm.h,
// batch_norm.h). A thread of the first stage adds at most 256 of them, in FP32.
//
// A block of ColumnSumsKernel has a tile of kTileColumns neighbouring columns. A lane
// loads two of them, so that a warp reads 128 bytes of a row; the warps of a block take
// turns with the rows. RowSumsKernel has a team of threads for each part of a row
// (cuda/norm/row.cuh).
//
//   cmake --build build/custom_ops --target norm_cuda_emulated_test &&
//     build/custom_ops/norm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_NORM_CHANNEL_SUMS_CUH_
#define KERAS_MP_SRC_CUDA_NORM_CHANNEL_SUMS_CUH_

#include "common/ceil_div.h"
#include "cuda/norm/row.cuh"
#include "keras_mp/data_type.h"

namespace keras_mp::cuda {

constexpr int kPair = 2;  // columns of a lane
constexpr int kTileColumns = kPair * kWarp;
constexpr int kMostPartRows = 256 * kBlockWarps;  // so that a thread adds 256
constexpr int kPartSize = kHeld * kBlock;         // elements of a part of a row
constexpr int kMostSums = 2;

// z = (x - mean) * inverse
struct Scale {
  float mean, inverse;
};

// What an element adds to the sums. kMatrices are the numbers that it has.
struct PlainTerm {
  static constexpr int kMatrices = 1, kSums = 1;
  static __device__ __forceinline__ void Add(const float (&x)[1], Scale,
                                             float (&sums)[1]) {
    sums[0] += x[0];
  }
};
struct SquareTerm {
  static constexpr int kMatrices = 1, kSums = 1;
  static __device__ __forceinline__ void Add(const float (&x)[1], Scale scale,
                                             float (&sums)[1]) {
    const float distance = x[0] - scale.mean;
    sums[0] += distance * distance;
  }
};
struct GradientTerm {  // x and grad_y
  static constexpr int kMatrices = 2, kSums = 2;
  static __device__ __forceinline__ void Add(const float (&x)[2], Scale scale,
                                             float (&sums)[2]) {
    sums[0] += x[1];
    sums[1] += x[1] * ((x[0] - scale.mean) * scale.inverse);
  }
};

// Where the scales of the elements are.
struct NoScales {
  static constexpr bool kIsOfRow = false;
  __device__ __forceinline__ Scale At(Index) const { return {0, 1}; }
};
struct RowScales {
  static constexpr bool kIsOfRow = true;
  __device__ __forceinline__ Scale At(Index row) const {
    return {scales[2 * row], scales[2 * row + 1]};
  }
  const float* scales;  // [rows, 2], mean and inverse
};
struct ChannelScales {
  static constexpr bool kIsOfRow = false;
  __device__ __forceinline__ Scale At(Index channel) const {
    const float inverse =
        variance == nullptr ? 1.0f : 1 / sqrtf(variance[channel] + epsilon);
    return {mean[channel], inverse};
  }
  const float* mean;
  const float* variance;  // the inverse is 1 where null
  float epsilon;
};

// The sums over `rows` of matrices [slices, rows, columns] in `parts` parts of
// `part_rows`.
struct ColumnParts {
  Index slices, rows, columns;
  Index parts, part_rows;
};

// A block's place in them: two columns for each lane.
struct ColumnPlace {
  __device__ __forceinline__ explicit ColumnPlace(const ColumnParts& a) {
    // In 32 bits: there are as many blocks.
    const auto tiles = static_cast<unsigned>(CeilDiv(a.columns, Index{kTileColumns}));
    const auto parts = static_cast<unsigned>(a.parts);
    const unsigned block = blockIdx.x;
    slice = block / tiles / parts;
    part = block / tiles % parts;
    tile = block % tiles;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    column = static_cast<Index>(tile) * kTileColumns + kPair * lane;
    count = a.columns - column < kPair ? static_cast<int>(a.columns - column) : kPair;
    begin = part * a.part_rows + static_cast<int>(threadIdx.x) / kWarp;
    const Index end_of_part = (part + 1) * a.part_rows;
    end = end_of_part < a.rows ? end_of_part : a.rows;
  }

  unsigned slice, part, tile;
  Index column;      // the first of the pair
  int count;         // of the pair, those that exist; 0 or less for none
  Index begin, end;  // rows begin, begin + kBlockWarps, ...
};

// The two numbers at `at`, or only the first.
template <class Format>
__device__ __forceinline__ void ReadPair(const void* matrix, Index at, bool is_packed,
                                         int count, float (&to)[kPair]) {
  const Bits16* from = static_cast<const Bits16*>(matrix) + at;
  ushort2 bits;
  if (is_packed) {
    bits = LoadWhole(reinterpret_cast<const ushort2*>(from));
  } else {
    bits = make_ushort2(from[0], count == kPair ? from[1] : Bits16{});
  }
  to[0] = Widen(Format{}, bits.x);
  to[1] = Widen(Format{}, bits.y);
}

template <class Format>
__device__ __forceinline__ void WritePair(void* matrix, Index at, bool is_packed,
                                          int count, const float (&x)[kPair]) {
  Bits16* to = static_cast<Bits16*>(matrix) + at;
  const Bits16 first = Round(Format{}, x[0]), second = Round(Format{}, x[1]);
  if (is_packed) {
    StoreWhole(reinterpret_cast<ushort2*>(to), make_ushort2(first, second));
    return;
  }
  to[0] = first;
  if (count == kPair) to[1] = second;
}

// Whether each pair of columns of a matrix is one vector.
__device__ __forceinline__ bool HasPairs(const void* matrix, Index columns) {
  return columns % kPair == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix) % sizeof(ushort2) == 0;
}

// Adds the sums of the warps of a block, and stores those of its part in `partials`,
// [kSums, slices, parts, columns].
template <int kSums>
__device__ __forceinline__ void StorePartials(const ColumnParts& a,
                                              const ColumnPlace& place,
                                              const float (&sums)[kSums][kPair],
                                              float* partials) {
  float* const of_warps = reinterpret_cast<float*>(SharedMemory());
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int j = 0; j < kPair; ++j) {
      const int column = thread % kWarp * kPair + j;
      of_warps[(s * kBlockWarps + warp) * kTileColumns + column] = sums[s][j];
    }
  }
  SyncThreads();
  if (thread >= kSums * kTileColumns) return;
  const int s = thread / kTileColumns, column_of_tile = thread % kTileColumns;
  const Index column = static_cast<Index>(place.tile) * kTileColumns + column_of_tile;
  if (column >= a.columns) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kBlockWarps; ++w) {
    sum += of_warps[(s * kBlockWarps + w) * kTileColumns + column_of_tile];
  }
  const Index matrix = (s * a.slices + place.slice) * a.parts + place.part;
  partials[matrix * a.columns + column] = sum;
}

constexpr int kColumnSumsSharedBytes =
    kMostSums * kBlockWarps * kTileColumns * static_cast<int>(sizeof(float));

template <class Scales>
struct ColumnSumsArguments {
  ColumnParts parts;
  const void* matrices[2];  // [slices, rows, columns]
  Scales scales;            // of the rows, or of the columns
  float* partials;
};

template <class Format, class Term, class Scales>
__global__ void __launch_bounds__(kBlock)
    ColumnSumsKernel(const ColumnSumsArguments<Scales> a) {
  const ColumnPlace place(a.parts);
  const Index columns = a.parts.columns;
  float sums[Term::kSums][kPair] = {};
  if (place.count > 0) {
    Scale scales[kPair] = {};
    bool is_packed[2];
#pragma unroll
    for (int m = 0; m < Term::kMatrices; ++m) {
      is_packed[m] = HasPairs(a.matrices[m], columns);
    }
    if (!Scales::kIsOfRow) {
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        if (j < place.count) scales[j] = a.scales.At(place.column + j);
      }
    }
    Index at = (place.slice * a.parts.rows + place.begin) * columns + place.column;
    for (Index row = place.begin; row < place.end; row += kBlockWarps) {
      float x[Term::kMatrices][kPair];
#pragma unroll
      for (int m = 0; m < Term::kMatrices; ++m) {
        ReadPair<Format>(a.matrices[m], at, is_packed[m], place.count, x[m]);
      }
      if (Scales::kIsOfRow) scales[0] = scales[1] = a.scales.At(row);
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        float numbers[Term::kMatrices], added[Term::kSums];
#pragma unroll
        for (int m = 0; m < Term::kMatrices; ++m) numbers[m] = x[m][j];
#pragma unroll
        for (int s = 0; s < Term::kSums; ++s) added[s] = sums[s][j];
        Term::Add(numbers, scales[j], added);
#pragma unroll
        for (int s = 0; s < Term::kSums; ++s) sums[s][j] = added[s];
      }
      at += kBlockWarps * columns;
    }
  }
  StorePartials<Term::kSums>(a.parts, place, sums, a.partials);
}

// The sums of the parts of each row of [outer * channels, size], where row r belongs to
// channel r % channels. Parts have kPartSize elements.
template <class Scales>
struct RowSumsArguments {
  Index rows, channels, size, parts;
  const void* matrices[2];
  Scales scales;    // of the channels
  float* partials;  // [kSums, outer, parts, channels]
};

template <class Format, class Term, class Scales, int kTeam>
__global__ void __launch_bounds__(kBlock)
    RowSumsKernel(const RowSumsArguments<Scales> a) {
  const Index index = Team<kTeam>::Row();
  if (index >= a.rows * a.parts) return;
  const Index row = index / a.parts, part = index % a.parts;
  const Index channel = row % a.channels;
  const Scale scale = a.scales.At(channel);
  const RowToRead<Format> of_matrices[2] = {
      ReadRow<Format>(a.matrices[0], row, a.size),
      ReadRow<Format>(a.matrices[Term::kMatrices - 1], row, a.size)};
  float sums[Term::kSums] = {};
#pragma unroll
  for (int k = 0; k < kHeldVectors; ++k) {
    const Index first = part * kPartSize +
                        static_cast<Index>(k * kTeam + Team<kTeam>::Rank()) * kEight;
    if (first >= a.size) continue;
    float x[Term::kMatrices][kEight];
#pragma unroll
    for (int m = 0; m < Term::kMatrices; ++m) of_matrices[m].Load(first).WidenTo(x[m]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      float numbers[Term::kMatrices];
#pragma unroll
      for (int m = 0; m < Term::kMatrices; ++m) numbers[m] = x[m][i];
      if (i < of_matrices[0].CountAt(first)) Term::Add(numbers, scale, sums);
    }
  }
#pragma unroll
  for (int s = 0; s < Term::kSums; ++s) {
    const float sum = Team<kTeam>::Sum(sums[s]);
    if (Team<kTeam>::Rank() != 0) continue;
    const Index outer = row / a.channels, outers = a.rows / a.channels;
    const Index matrix = (s * outers + outer) * a.parts + part;
    a.partials[matrix * a.channels + channel] = sum;
  }
}

constexpr int kFinishLanes = 8;                      // threads that add parts of one sum
constexpr int kFinishColumns = kBlock / kFinishLanes;  // sums of a block
constexpr int kFinishSharedBytes = kBlock * static_cast<int>(sizeof(double));

// totals[slice, column] = sum over parts of partials[slice, part, column] / divisor
struct FinishArguments {
  Index slices, parts, columns;
  const float* partials;
  double divisor;
  float* totals;
};

static __global__ void __launch_bounds__(kBlock) FinishKernel(const FinishArguments a) {
  const Index tiles = CeilDiv(a.columns, Index{kFinishColumns}), block = blockIdx.x;
  const Index slice = block / tiles;
  const int thread = static_cast<int>(threadIdx.x), lane = thread / kFinishColumns;
  const Index column = block % tiles * kFinishColumns + thread % kFinishColumns;
  double sum = 0;
  if (column < a.columns) {
    for (Index part = lane; part < a.parts; part += kFinishLanes) {
      sum += a.partials[(slice * a.parts + part) * a.columns + column];
    }
  }
  double* const of_lanes = reinterpret_cast<double*>(SharedMemory());
  of_lanes[thread] = sum;
  SyncThreads();
  if (lane != 0 || column >= a.columns) return;
#pragma unroll
  for (int other = 1; other < kFinishLanes; ++other) {
    sum += of_lanes[other * kFinishColumns + thread];
  }
  a.totals[slice * a.columns + column] = static_cast<float>(sum / a.divisor);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_CHANNEL_SUMS_CUH_
