// The names under which the XLA FFI handlers of the update step are registered.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_XLA_CALL_NAMES_H_
#define KERAS_MP_TENSORFLOW_UPDATE_XLA_CALL_NAMES_H_

namespace keras_mp {

// The operands of a call are the inputs of the op of that name. The results are its
// outputs, or the variables that it writes to, each in the memory of its operand.
inline constexpr char kCheckGradientsCall[] = "keras_mp.check_gradients";
inline constexpr char kUnscaleGradientsCall[] = "keras_mp.unscale_gradients";
inline constexpr char kSyncMastersFromWeightsCall[] =
    "keras_mp.sync_masters_from_weights";
inline constexpr char kCastMastersCall[] = "keras_mp.cast_masters";
inline constexpr char kUpdateVariablesCall[] = "keras_mp.update_variables";

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_XLA_CALL_NAMES_H_
