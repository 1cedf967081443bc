// The names under which the XLA FFI handlers of attention are registered.

#ifndef KERAS_MP_TENSORFLOW_ATTENTION_XLA_CALL_NAMES_H_
#define KERAS_MP_TENSORFLOW_ATTENTION_XLA_CALL_NAMES_H_

namespace keras_mp {

// Operands and results are the inputs and outputs of the ops.
inline constexpr char kAttentionCall[] = "keras_mp.attention";
inline constexpr char kAttentionGradientCall[] = "keras_mp.attention_gradient";

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_ATTENTION_XLA_CALL_NAMES_H_
