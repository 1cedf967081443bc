// The CUDA kernels that compute a number for each element of a tensor from the constants
// of its channel: batch normalization and its gradient for x,
//
//   y = round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
//   grad_x = round(gamma / sqrt(variance + epsilon) *
//                  (grad_y - mean(grad_y) - z * mean(grad_y * z)))
//
// in 16 bits in and out, FP32 between. ColumnMapKernel has the channels in columns,
// RowMapKernel in rows: the blocks and threads are those of cuda/norm/channel_sums.cuh.
//
//   cmake --build build/custom_ops --target norm_cuda_emulated_test &&
//     build/custom_ops/norm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_NORM_CHANNEL_MAP_CUH_
#define KERAS_MP_SRC_CUDA_NORM_CHANNEL_MAP_CUH_

#include "cuda/norm/channel_sums.cuh"

namespace keras_mp::cuda {

// A map has the constants of a channel, and a number for its elements. All pointers are
// to [channels].
struct NormalizeMap {
  static constexpr int kMatrices = 1;
  struct Channel {
    float mean, factor, offset;
  };

  __device__ __forceinline__ Channel At(Index channel) const {
    const float inverse = 1 / sqrtf(variance[channel] + epsilon);
    return {mean[channel], inverse * gamma[channel], beta[channel]};
  }
  static __device__ __forceinline__ float Of(const float (&x)[1], const Channel& of) {
    return (x[0] - of.mean) * of.factor + of.offset;
  }

  const float *mean, *variance, *gamma, *beta;
  float epsilon;
};

struct GradientMap {  // of x and grad_y
  static constexpr int kMatrices = 2;
  struct Channel {
    float mean, inverse, factor, mean_grad_y, mean_grad_y_z;
  };

  __device__ __forceinline__ Channel At(Index channel) const {
    const float inverse = 1 / sqrtf(variance[channel] + epsilon);
    const bool is_training = count > 0;
    return {mean[channel], inverse, inverse * gamma[channel],
            is_training ? grad_beta[channel] / count : 0,
            is_training ? grad_gamma[channel] / count : 0};
  }
  static __device__ __forceinline__ float Of(const float (&x)[2], const Channel& of) {
    const float z = (x[0] - of.mean) * of.inverse;
    return of.factor * (x[1] - of.mean_grad_y - z * of.mean_grad_y_z);
  }

  const float *mean, *variance, *gamma, *grad_beta, *grad_gamma;
  float epsilon;
  float count;  // elements of a channel; 0 in inference
};

template <class Map>
struct ColumnMapArguments {
  ColumnParts parts;
  const void* matrices[2];
  Map map;
  void* to;
};

template <class Format, class Map>
__global__ void __launch_bounds__(kBlock)
    ColumnMapKernel(const ColumnMapArguments<Map> a) {
  const ColumnPlace place(a.parts);
  if (place.count <= 0) return;
  const Index columns = a.parts.columns;
  bool is_packed[2];
#pragma unroll
  for (int m = 0; m < Map::kMatrices; ++m) is_packed[m] = HasPairs(a.matrices[m], columns);
  const bool is_result_packed = HasPairs(a.to, columns);
  typename Map::Channel channels[kPair];
#pragma unroll
  for (int j = 0; j < kPair; ++j) {
    channels[j] = a.map.At(j < place.count ? place.column + j : place.column);
  }
  Index at = place.begin * columns + place.column;
  for (Index row = place.begin; row < place.end; row += kBlockWarps) {
    float x[Map::kMatrices][kPair], result[kPair];
#pragma unroll
    for (int m = 0; m < Map::kMatrices; ++m) {
      ReadPair<Format>(a.matrices[m], at, is_packed[m], place.count, x[m]);
    }
#pragma unroll
    for (int j = 0; j < kPair; ++j) {
      float numbers[Map::kMatrices];
#pragma unroll
      for (int m = 0; m < Map::kMatrices; ++m) numbers[m] = x[m][j];
      result[j] = Map::Of(numbers, channels[j]);
    }
    WritePair<Format>(a.to, at, is_result_packed, place.count, result);
    at += kBlockWarps * columns;
  }
}

template <class Map>
struct RowMapArguments {
  Index rows, channels, size, parts;  // as in RowSumsArguments
  const void* matrices[2];
  Map map;
  void* to;
};

template <class Format, class Map, int kTeam>
__global__ void __launch_bounds__(kBlock) RowMapKernel(const RowMapArguments<Map> a) {
  const Index index = Team<kTeam>::Row();
  if (index >= a.rows * a.parts) return;
  const Index row = index / a.parts, part = index % a.parts;
  const auto channel = a.map.At(row % a.channels);
  const RowToRead<Format> of_matrices[2] = {
      ReadRow<Format>(a.matrices[0], row, a.size),
      ReadRow<Format>(a.matrices[Map::kMatrices - 1], row, a.size)};
  const auto to = WriteRow<Format>(a.to, row, a.size);
#pragma unroll
  for (int k = 0; k < kHeldVectors; ++k) {
    const Index first = part * kPartSize +
                        static_cast<Index>(k * kTeam + Team<kTeam>::Rank()) * kEight;
    if (first >= a.size) continue;
    float x[Map::kMatrices][kEight], result[kEight];
#pragma unroll
    for (int m = 0; m < Map::kMatrices; ++m) of_matrices[m].Load(first).WidenTo(x[m]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      float numbers[Map::kMatrices];
#pragma unroll
      for (int m = 0; m < Map::kMatrices; ++m) numbers[m] = x[m][i];
      result[i] = Map::Of(numbers, channel);
    }
    to.Store(first, result);
  }
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_CHANNEL_MAP_CUH_
