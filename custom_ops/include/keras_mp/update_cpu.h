// The update step of all variables in one call, on a CPU: "Mixed Precision Training"
// (Micikevicius et al., 2018, sections 3.1 and 3.2).
//
//   1. CheckGradientsCpu   are all gradients, divided by the loss scale, finite?
//   2. UpdateCpu           g = gradient / scale, clipped; decay; the slots and the FP32
//                          master move; the 16-bit weight becomes its master, rounded
//
// or, around an optimizer of someone else: UnscaleGradientsCpu, FollowWeightsCpu, then
// that optimizer, then CastMastersCpu.
//
// Every operation on a number is one FP32 operation, rounded to nearest even; none is
// contracted with another. The sum of squares is FP32 for at most 1024 numbers and
// double from there on: it errs by at most 2^-14 of itself.
//
// Nothing here depends on the threads, and but for the sum of squares nothing on `isa`.

#ifndef KERAS_MP_UPDATE_CPU_H_
#define KERAS_MP_UPDATE_CPU_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/data_type.h"
#include "keras_mp/status.h"

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
  float scale = 1;
  bool* overflows = nullptr;  // [count]
  double* squares = nullptr;  // the sum of the squares of gradients / scale, or null
};

Status CheckGradientsCpu(const GradientCheck& check, const Parallel& parallel = {},
                         Isa isa = BestIsa());

// The same, and to[i] = gradients[i] / scale. An FP32 gradient may be written in place.
Status UnscaleGradientsCpu(const GradientCheck& check, float* const* to,
                           const Parallel& parallel = {}, Isa isa = BestIsa());

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

// master = weight where the weight is not a rounding of the master.
Status FollowWeightsCpu(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                        const Parallel& parallel = {}, Isa isa = BestIsa());

// weight = round(master). `uniforms`: [count] arrays for stochastic rounding, else null.
Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel = {},
                      Isa isa = BestIsa());

// How a gradient g moves the slots and the master w:
//   kSgd       w -= g rate
//   kMomentum  m = m momentum - g rate;  w += m
//   kNesterov  m likewise;               w += m momentum - g rate
//   kAdam      m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2);
//              w -= m alpha / (sqrt(v) + epsilon)
enum class UpdateRule { kSgd, kMomentum, kNesterov, kAdam };

struct UpdateNumbers {
  UpdateRule rule = UpdateRule::kSgd;
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

struct Update {
  std::int64_t count = 0;
  const Parameter* parameters = nullptr;
  UpdateNumbers numbers;
  Rounding rounding = Rounding::kNearest;
};

// Follows the weights first, and casts the masters last.
Status UpdateCpu(const Update& update, const Parallel& parallel = {},
                 Isa isa = BestIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_CPU_H_
