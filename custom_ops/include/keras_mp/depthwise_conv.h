// Depthwise convolution of 16-bit tensors in FP32, and its gradients: "Mixed Precision
// Training" (Micikevicius et al., 2018, section 3.3). depthwise_conv_cpu.h and
// depthwise_conv_cuda.h declare the functions that compute it.
//
//   y[n, o, p, c] = round(bias[c] + sum over i and j of x[n, a(o, i), b(p, j), c]
//                                                       * kernel[i, j, c])
//   a(o, i) = o * stride - before + i * dilation, and b(p, j) likewise
//
// Positions outside of x are zeros. The kernel is rounded to the type of x. Accumulator:
// FP32; a sum of N products errs by at most (N + 1) * 2^-24 of the sum of their absolute
// values and that of the bias. Rounding: once, to nearest even. The gradient of the kernel
// sums at most 256 products in a register and 256 of such sums in FP32, or those of one row
// of y if it has more, and those in double: for rows of up to 65,000 elements it errs by
// at most 2^-15 of the sum of the absolute values. It is FP32.

#ifndef KERAS_MP_DEPTHWISE_CONV_H_
#define KERAS_MP_DEPTHWISE_CONV_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// One of the two dimensions in which the kernel slides.
struct ConvolvedDimension {
  std::int64_t size = 1;    // of x
  std::int64_t result = 1;  // of y
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t before = 0;  // padding before the first element
};

// TensorFlow's windows; `is_same` is the padding "same", otherwise "valid". The kernel, the
// stride and the dilation are from 1 to 2^31 - 1.
inline ConvolvedDimension Convolved(std::int64_t size, std::int64_t kernel,
                                    std::int64_t stride, std::int64_t dilation,
                                    bool is_same) {
  ConvolvedDimension one = {size, 0, kernel, stride, dilation, 0};
  const std::int64_t reach = (kernel - 1) * dilation + 1;
  if (is_same) {
    one.result = size / stride + (size % stride != 0);
    // What the last window reaches of x; no sum of sizes, which may overflow.
    const std::int64_t inside = size - (one.result - 1) * stride;
    one.before = reach > inside ? (reach - inside) / 2 : 0;
  } else {
    one.result = size < reach ? 0 : (size - reach) / stride + 1;
  }
  return one;
}

// x is [batch, size, size, channels], y [batch, result, result, channels], the kernel
// [kernel, kernel, channels] and the bias [channels], packed; a gradient has the shape of
// its tensor.
struct DepthwiseConv {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  ConvolvedDimension dimensions[2];
  DataType type = DataType::kHalf;          // of x and the gradients of x and y: 16 bits
  DataType kernel_type = DataType::kFloat;  // `type` or kFloat
};

}  // namespace keras_mp

#endif  // KERAS_MP_DEPTHWISE_CONV_H_
