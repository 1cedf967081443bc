// One optimizer step for all variables: un-scaling, clipping, weight decay, the rule of
// the optimizer on FP32 master weights, and rounding into 16-bit weights ("Mixed
// Precision Training", Micikevicius et al., 2018, sections 3.1 and 3.2). update_cpu.h and
// update_cuda.h declare the functions that compute it.
//
//   1. CheckGradients   the largest magnitude of each gradient / scale: is it finite?
//   2. Update           g = gradient / scale, clipped; weight decay; the slots and the
//                       FP32 master are updated; the 16-bit weight is its master, rounded
//
// Where an optimizer without a kernel computes the new masters: UnscaleGradients, then
// SyncMastersFromWeights, then that optimizer, then CastMasters.
//
// The lists of arrays are in host memory. Arrays are contiguous and lie, as all scalars
// and `hyperparameters` do, in the memory of the device that computes.
//
// Rounding: every operation is one FP32 operation, rounded to nearest even; no multiply
// and add are contracted into one. So all devices give the same bits, unless one flushes
// numbers below 2^-126 to zero, as TensorFlow has a CPU do. Accumulator of the sum of
// squares: FP32 for at most 1024 elements, and double beyond. Its relative error is at
// most 2^-14.

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

// The arguments and results of a check: largest[i] is the largest magnitude of the
// elements of gradients[i] / scale, and 0 where there are none. NaN counts as larger than
// inf, so it is finite where all of them are.
struct GradientCheck {
  std::int64_t count = 0;
  const Gradient* gradients = nullptr;
  const float* scale = nullptr;     // [1]
  float* largest = nullptr;         // [count]
  float* sum_of_squares = nullptr;  // [1]: of all elements of gradients / scale; or null
};

// A 16-bit weight and its FP32 master.
struct MasterPair {
  std::int64_t size = 0;
  float* master = nullptr;
  DataType type = DataType::kHalf;  // of the weight: kHalf or kBfloat16
  std::uint16_t* weight = nullptr;
};

// How a master is rounded to its weight. Both ways saturate at the largest finite number.
// kNearest rounds to nearest even. kStochastic rounds up with the probability (master -
// below) / (above - below), where below and above are the 16-bit numbers on both sides of
// the master: if the element of `uniforms`, from [0, 1), is less than that.
enum class Rounding { kNearest, kStochastic };

// How a gradient g changes the slots, which are listed in brackets, and the master w, at
// the learning rate lr:
//   kSgd       []      w -= g lr
//   kMomentum  [m]     m = m momentum - g lr;  w += m
//   kNesterov  [m]     m likewise;  w += m momentum - g lr
//   kAdam      [m, v]  m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2);
//                      w -= m alpha / (sqrt(v) + epsilon)
//   kAmsgrad   [m, v, h]  m and v likewise;  h = max(h, v);
//                      w -= m alpha / (sqrt(h) + epsilon)
//   kNadam     [m, v]  m and v likewise;
//                      n = m_factor m / m_divisor + g_factor g / g_divisor;
//                      w -= n lr / (sqrt(v / v_divisor) + epsilon)
//   kAdamax    [m, u]  m likewise;  u = max(beta_2 u, |g|);
//                      w -= lr m / (m_divisor (u + epsilon))
//   kLion      [m]     w -= lr sign(m beta_1 + g (1 - beta_1));
//                      m = m beta_2 + g (1 - beta_2)
//   kAdagrad   [v]     v += g^2;  w -= lr g / sqrt(v + epsilon)
//   kAdadelta  [v, e]  v = beta_2 v + (1 - beta_2) g^2;
//                      d = sqrt(e + epsilon) g / sqrt(v + epsilon);
//                      e = beta_2 e + (1 - beta_2) d^2;  w -= lr d
//   kFtrl      [n, z]  h = n + g^2;
//                      z += g + l2_shrinkage w - w (sqrt(h) - sqrt(n)) / lr;
//                      w = (z clipped to [-l1, l1] - z) / (sqrt(h) / lr + l2);  n = h;
//                      l2_shrinkage and l2 are twice those of Keras
//   kRmsprop   [v]     v likewise;  w -= lr g / sqrt(v + epsilon)
//   kRmspropMomentum   [v, m]  v likewise;
//                      m = momentum m + lr g / sqrt(v + epsilon);  w -= m
//   kCenteredRmsprop, kCenteredRmspropMomentum  [v, a], [v, a, m]  as the two above,
//                      with a = beta_2 a + (1 - beta_2) g, and v - a^2 under the root
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
  kFtrl,
  kRmsprop,
  kRmspropMomentum,
  kCenteredRmsprop,
  kCenteredRmspropMomentum,
};

constexpr int kUpdateRules = 15;
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
    case UpdateRule::kFtrl:
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kCenteredRmsprop:
      return 2;
    case UpdateRule::kAmsgrad:
    case UpdateRule::kCenteredRmspropMomentum:
      return 3;
  }
  return 0;
}

struct UpdateHyperparameters {
  float scale = 1;         // g = gradient / scale,
  float clip_value = 0;    // then clipped to [-clip_value, clip_value] if that is not 0,
  float clip_factor = 1;   // then multiplied by clip_factor
  float weight_decay = 0;  // before the rule: w -= w weight_decay lr
  float learning_rate = 0;
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
  float l1 = 0;
  float l2 = 0;
  float l2_shrinkage = 0;
};

struct Parameter {
  Gradient gradient;
  float* slots[kMostSlots] = {};  // SlotsOf(rule) of them
  bool apply_weight_decay = false;
  MasterPair pair;  // of an FP32 variable, its own master, the weight is null
  const float* uniforms = nullptr;  // for stochastic rounding
};

// The arguments of a step. Before the rule, masters are synchronized from their weights
// as by SyncMastersFromWeights; after it, they are cast as by CastMasters.
struct Update {
  std::int64_t count = 0;
  const Parameter* parameters = nullptr;
  UpdateRule rule = UpdateRule::kSgd;
  Rounding rounding = Rounding::kNearest;
  const UpdateHyperparameters* hyperparameters = nullptr;  // [1]
  const bool* finite = nullptr;  // [1]: if false, nothing is written; null means true
};

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_H_
