// The update step of all variables: "Mixed Precision Training" (Micikevicius et al., 2018,
// sections 3.1 and 3.2). update_cpu.h and update_cuda.h compute it.
//
//   1. CheckGradients   are all gradients, divided by the loss scale, finite?
//   2. Update           g = gradient / scale, clipped; decay; the slots and the FP32
//                       master move; the 16-bit weight becomes its master, rounded
//
// or, around an optimizer of someone else: UnscaleGradients, FollowWeights, then that
// optimizer, then CastMasters.
//
// Lists lie in the host's memory, numbers in the memory of the device that computes.
//
// Every operation on a number is one FP32 operation, rounded to nearest even; none is
// contracted with another. So all devices give the same bits, unless one is told to flush
// numbers below 2^-126 to zero, as TensorFlow tells a CPU. The sum of squares is FP32
// for at most 1024 numbers and double from there on: it errs by at most 2^-14 of itself.

#ifndef KERAS_MP_UPDATE_H_
#define KERAS_MP_UPDATE_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

struct Gradient {
  std::int64_t size = 0;
  DataType type = DataType::kFloat;
  const void* values = nullptr;
};

// `overflows[i]` becomes true where a number of gradients[i] / scale is not finite.
struct GradientCheck {
  std::int64_t count = 0;
  const Gradient* gradients = nullptr;
  const float* scale = nullptr;  // [1]
  bool* overflows = nullptr;     // [count]
  float* squares = nullptr;  // [1]: the sum of the squares of gradients / scale; or null
};

// A 16-bit weight and its FP32 master.
struct MasterPair {
  std::int64_t size = 0;
  float* master = nullptr;
  DataType type = DataType::kHalf;  // of the weight: kHalf or kBfloat16
  std::uint16_t* weight = nullptr;
};

// How masters become weights; both saturate at the largest finite number. Nearest is to
// even. Stochastic rounds up where the number of `uniforms`, from [0, 1), is below
// the master's place between its neighbours.
enum class Rounding { kNearest, kStochastic };

// How a gradient g moves the slots and the master w:
//   kSgd       w -= g rate
//   kMomentum  m = m momentum - g rate;  w += m
//   kNesterov  m likewise;               w += m momentum - g rate
//   kAdam      m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2);
//              w -= m alpha / (sqrt(v) + epsilon)
enum class UpdateRule { kSgd, kMomentum, kNesterov, kAdam };

struct UpdateNumbers {
  float scale = 1;        // g = gradient / scale,
  float clip_value = 0;   // then limited to [-clip_value, clip_value] if that is not 0,
  float clip_factor = 1;  // then multiplied by this
  float weight_decay = 0;  // before the rule: w -= w weight_decay rate
  float rate = 0;
  float momentum = 0;
  float alpha = 0;
  float one_minus_beta_1 = 0;
  float one_minus_beta_2 = 0;
  float epsilon = 0;
};

struct Parameter {
  Gradient gradient;
  float* slots[2] = {nullptr, nullptr};  // m and v, as far as the rule has them
  bool decays = false;
  MasterPair pair;  // with a weight of null where the master is the weight itself
  const float* uniforms = nullptr;  // for stochastic rounding
};

// First masters follow their weights, and last they are cast.
struct Update {
  std::int64_t count = 0;
  const Parameter* parameters = nullptr;
  UpdateRule rule = UpdateRule::kSgd;
  Rounding rounding = Rounding::kNearest;
  const UpdateNumbers* numbers = nullptr;  // [1]
  const bool* finite = nullptr;  // [1]: if false, nothing changes; null: true
};

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_H_
