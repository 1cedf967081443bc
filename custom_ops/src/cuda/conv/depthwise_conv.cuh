// The CUDA kernels of a depthwise convolution and its gradients (keras_mp/depthwise_conv.h
// has the formulas). They are direct, and not tuned: they are there so that a SavedModel
// with these ops runs on a GPU.
//
//   DepthwiseConvKernel       a thread for each element of y
//   DepthwiseConvGradXKernel  a thread for each element of grad_x
//   DepthwiseConvGradKernelKernel, FinishKernel
//                             the gradient of the kernel, in the two stages of
//                             cuda/norm/channel_sums.cuh: a slice for each element of the
//                             kernel, a row for each row of each image, a column for each
//                             channel
//
// Tensors are packed, the channels last: neighbouring threads have neighbouring channels.
//
//   cmake --build build/custom_ops --target depthwise_conv_cuda_emulated_test &&
//     build/custom_ops/depthwise_conv_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_CONV_DEPTHWISE_CONV_CUH_
#define KERAS_MP_SRC_CUDA_CONV_DEPTHWISE_CONV_CUH_

#include "common/convolved_position.h"
#include "cuda/norm/channel_sums.cuh"
#include "keras_mp/depthwise_conv.h"

namespace keras_mp::cuda {

// Of DepthwiseConvGradXKernel, on a multiprocessor. The compiler aims at more, and spills.
constexpr int kBlocks = 4;

// A number of an array in Format or FP32.
template <class Format>
__device__ __forceinline__ float ReadNumber(const void* array, DataType type, Index at) {
  if (type == DataType::kFloat) return static_cast<const float*>(array)[at];
  return Widen(Format{}, static_cast<const Bits16*>(array)[at]);
}

// An element of the kernel, rounded to Format.
template <class Format>
__device__ __forceinline__ float ReadWeight(const void* kernel, DataType type, Index at) {
  const float weight = ReadNumber<Format>(kernel, type, at);
  return Widen(Format{}, Round(Format{}, weight));
}

// The place of the element that a thread computes, in a tensor [batch, size, size,
// channels].
struct ElementPlace {
  __device__ __forceinline__ ElementPlace(Index rows, Index columns, Index channels) {
    index = static_cast<Index>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
    channel = index % channels;
    column = index / channels % columns;
    row = index / channels / columns % rows;
    image = index / channels / columns / rows;
  }

  Index index, channel, column, row, image;
};

struct DepthwiseConvArguments {
  DepthwiseConv conv;
  const void* from;  // x or grad_y
  const void* kernel;
  const void* bias;  // or null
  DataType bias_type;
  void* to;
  DataType to_type;
};

template <class Format>
__device__ __forceinline__ void WriteNumber(void* array, DataType type, Index at,
                                            float x) {
  if (type == DataType::kFloat) {
    static_cast<float*>(array)[at] = x;
  } else {
    static_cast<Bits16*>(array)[at] = Round(Format{}, x);
  }
}

// sum + the products of the weights of a channel and the pixels of `a.from`, an image of
// rows * columns, which they meet. kPosition says where that is.
template <class Format, std::int64_t (*kPosition)(const ConvolvedDimension&, std::int64_t,
                                                  std::int64_t)>
__device__ __forceinline__ float AddProducts(const DepthwiseConvArguments& a,
                                             const ElementPlace& to, Index rows,
                                             Index columns, float sum) {
  const Index kernel_rows = a.conv.dimensions[0].kernel;
  const Index kernel_columns = a.conv.dimensions[1].kernel;
  for (Index i = 0; i < kernel_rows; ++i) {
    const Index row = kPosition(a.conv.dimensions[0], to.row, i);
    if (row == kNowhere) continue;
    for (Index j = 0; j < kernel_columns; ++j) {
      const Index column = kPosition(a.conv.dimensions[1], to.column, j);
      if (column == kNowhere) continue;
      const Index pixel = (to.image * rows + row) * columns + column;
      const Index weight = (i * kernel_columns + j) * a.conv.channels + to.channel;
      sum += ReadNumber<Format>(a.from, a.conv.type, pixel * a.conv.channels + to.channel) *
             ReadWeight<Format>(a.kernel, a.conv.kernel_type, weight);
    }
  }
  return sum;
}

template <class Format>
__global__ void __launch_bounds__(kBlock)
    DepthwiseConvKernel(const DepthwiseConvArguments a) {
  const ConvolvedDimension &rows = a.conv.dimensions[0], &columns = a.conv.dimensions[1];
  const ElementPlace y(rows.result, columns.result, a.conv.channels);
  if (y.image >= a.conv.batch) return;
  const float bias =
      a.bias == nullptr ? 0 : ReadNumber<Format>(a.bias, a.bias_type, y.channel);
  const float sum = AddProducts<Format, PositionInX>(a, y, rows.size, columns.size, bias);
  WriteNumber<Format>(a.to, a.to_type, y.index, sum);
}

template <class Format>
__global__ void __launch_bounds__(kBlock, kBlocks)
    DepthwiseConvGradXKernel(const DepthwiseConvArguments a) {
  const ConvolvedDimension &rows = a.conv.dimensions[0], &columns = a.conv.dimensions[1];
  const ElementPlace x(rows.size, columns.size, a.conv.channels);
  if (x.image >= a.conv.batch) return;
  const float sum = AddProducts<Format, PositionInY>(a, x, rows.result, columns.result, 0);
  WriteNumber<Format>(a.to, a.to_type, x.index, sum);
}

struct DepthwiseConvGradKernelArguments {
  DepthwiseConv conv;
  ColumnParts parts;
  const void *x, *grad_y;
  float* partials;  // [elements of the kernel, parts, channels]
};

// A thread adds at most 256 products in FP32, and those sums in double.
template <class Format>
__global__ void __launch_bounds__(kBlock)
    DepthwiseConvGradKernelKernel(const DepthwiseConvGradKernelArguments a) {
  const ConvolvedDimension &rows = a.conv.dimensions[0], &columns = a.conv.dimensions[1];
  const ColumnPlace place(a.parts);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Index i = place.slice / columns.kernel, j = place.slice % columns.kernel;
  const bool is_packed =
      HasPairs(a.x, a.conv.channels) && HasPairs(a.grad_y, a.conv.channels);
  double sums[kPair] = {};
  // Rows of y, through all images; the warps take turns with the elements of a row.
  for (Index row = place.begin - warp; place.count > 0 && row < place.end; ++row) {
    const Index image = row / rows.result;
    const Index row_of_x = PositionInX(rows, row % rows.result, i);
    if (row_of_x == kNowhere) continue;
    const Index from_x = (image * rows.size + row_of_x) * columns.size;
    for (Index first = 0; first < columns.result; first += kMostPartRows) {
      float of_part[kPair] = {};
      const Index beyond = first + kMostPartRows;
      const Index end = beyond < columns.result ? beyond : columns.result;
      for (Index column = first + warp; column < end; column += kBlockWarps) {
        const Index column_of_x = PositionInX(columns, column, j);
        if (column_of_x == kNowhere) continue;
        const Index pixel = from_x + column_of_x, pixel_of_y = row * columns.result + column;
        float x[kPair], grad_y[kPair];
        ReadPair<Format>(a.x, pixel * a.conv.channels + place.column, is_packed,
                         place.count, x);
        ReadPair<Format>(a.grad_y, pixel_of_y * a.conv.channels + place.column, is_packed,
                         place.count, grad_y);
#pragma unroll
        for (int k = 0; k < kPair; ++k) of_part[k] += x[k] * grad_y[k];
      }
#pragma unroll
      for (int k = 0; k < kPair; ++k) sums[k] += of_part[k];
    }
  }
  const float rounded[1][kPair] = {
      {static_cast<float>(sums[0]), static_cast<float>(sums[1])}};
  StorePartials<1>(a.parts, place, rounded, a.partials);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_CONV_DEPTHWISE_CONV_CUH_
