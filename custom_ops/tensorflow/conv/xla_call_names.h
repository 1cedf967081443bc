// The names under which the XLA FFI handlers of the depthwise convolution are registered.

#ifndef KERAS_MP_TENSORFLOW_CONV_XLA_CALL_NAMES_H_
#define KERAS_MP_TENSORFLOW_CONV_XLA_CALL_NAMES_H_

namespace keras_mp {

// The operands are [x, kernel, bias...], [kernel, grad_y] and [x, grad_y], and the result
// is that of the op.
inline constexpr char kDepthwiseConvCall[] = "keras_mp.depthwise_conv";
inline constexpr char kDepthwiseConvGradXCall[] = "keras_mp.depthwise_conv_grad_x";
inline constexpr char kDepthwiseConvGradKernelCall[] =
    "keras_mp.depthwise_conv_grad_kernel";

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_CONV_XLA_CALL_NAMES_H_
