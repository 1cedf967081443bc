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

// How a gradient g moves the slots, which are listed in brackets, and the master w:
//   kSgd       []      w -= g rate
//   kMomentum  [m]     m = m momentum - g rate;  w += m
//   kNesterov  [m]     m likewise;  w += m momentum - g rate
//   kAdam      [m, v]  m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2);
//                      w -= m alpha / (sqrt(v) + epsilon)
//   kAmsgrad   [m, v, h]  m and v likewise;  h = max(h, v);
//                      w -= m alpha / (sqrt(h) + epsilon)
//   kNadam     [m, v]  m and v likewise;
//                      n = m_factor m / m_divisor + g_factor g / g_divisor;
//                      w -= n rate / (sqrt(v / v_divisor) + epsilon)
//   kAdamax    [m, u]  m likewise;  u = max(beta_2 u, |g|);
//                      w -= rate m / (m_divisor (u + epsilon))
//   kLion      [m]     w -= rate sign(m beta_1 + g (1 - beta_1));
//                      m = m beta_2 + g (1 - beta_2)
//   kAdagrad   [v]     v += g^2;  w -= rate g / sqrt(v + epsilon)
//   kAdadelta  [v, e]  v = beta_2 v + (1 - beta_2) g^2;
//                      d = sqrt(e + epsilon) g / sqrt(v + epsilon);
//                      e = beta_2 e + (1 - beta_2) d^2;  w -= rate d
//   kRmsprop   [v]     v likewise;  w -= rate g / sqrt(v + epsilon)
//   kRmspropMomentum   [v, m]  v likewise;
//                      m = momentum m + rate g / sqrt(v + epsilon);  w -= m
//   kCenteredRmsprop, kCenteredRmspropMomentum  [v, a], [v, a, m]  as the two before, with
//                      a = beta_2 a + (1 - beta_2) g, and v - a^2 under the root
enum class UpdateRule {
  kSgd,
  kMomentum,
  kNesterov,
  kAdam,
  kAmsgrad,
  kNadam,
  kAdamax,
  kLion,
  kAdagrad,
  kAdadelta,
  kRmsprop,
  kRmspropMomentum,
  kCenteredRmsprop,
  kCenteredRmspropMomentum,
};

constexpr int kUpdateRules = 14;
constexpr int kMostSlots = 3;

constexpr int SlotsOf(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kSgd:
      return 0;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
    case UpdateRule::kLion:
    case UpdateRule::kAdagrad:
    case UpdateRule::kRmsprop:
      return 1;
    case UpdateRule::kAdam:
    case UpdateRule::kNadam:
    case UpdateRule::kAdamax:
    case UpdateRule::kAdadelta:
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kCenteredRmsprop:
      return 2;
    case UpdateRule::kAmsgrad:
    case UpdateRule::kCenteredRmspropMomentum:
      return 3;
  }
  return 0;
}

struct UpdateNumbers {
  float scale = 1;        // g = gradient / scale,
  float clip_value = 0;   // then limited to [-clip_value, clip_value] if that is not 0,
  float clip_factor = 1;  // then multiplied by this
  float weight_decay = 0;  // before the rule: w -= w weight_decay rate
  float rate = 0;
  float momentum = 0;
  float alpha = 0;
  float beta_1 = 0;
  float one_minus_beta_1 = 0;
  float beta_2 = 0;
  float one_minus_beta_2 = 0;
  float epsilon = 0;
  float m_factor = 0;
  float m_divisor = 0;
  float g_factor = 0;
  float g_divisor = 0;
  float v_divisor = 0;
};

struct Parameter {
  Gradient gradient;
  float* slots[kMostSlots] = {};  // as far as the rule has them
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
