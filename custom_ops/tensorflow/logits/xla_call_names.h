// The names under which the XLA FFI handlers of logits are registered.

#ifndef KERAS_MP_TENSORFLOW_LOGITS_XLA_CALL_NAMES_H_
#define KERAS_MP_TENSORFLOW_LOGITS_XLA_CALL_NAMES_H_

namespace keras_mp {

// Operands and results are the inputs and outputs of the ops.
inline constexpr char kLogitStatisticsCall[] = "keras_mp.logit_statistics";
inline constexpr char kLogitStatisticsGradientCall[] =
    "keras_mp.logit_statistics_gradient";

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_LOGITS_XLA_CALL_NAMES_H_
