// One optimizer step for all variables: un-scaling, clipping, weight decay, the rule of
// the optimizer on FP32 master weights, and rounding into 16-bit weights ("Mixed
// Precision Training", Micikevicius et al., 2018, sections 3.1 and 3.2). update_cpu.h and
// update_cuda.h declare the functions that compute it.
//
//   1. CheckGradients   the largest magnitude of each gradient / scale: is it finite?
//   2. Update           g = gradient / scale, clipped; weight decay; the slots and the
//                       FP32 master are updated; the 16-bit weight is its master, rounded
//
// Masters and slots may be held in fewer bytes (MasterPair and Slot say how). A step then
// computes in FP32 as well: it expands a block at a time, and compresses the result.
//
// Where an optimizer without a kernel computes the new masters: UnscaleGradients, then
// SyncMastersFromWeights, then that optimizer, then CastMasters.
//
// The lists of arrays are in host memory. Arrays are contiguous and lie, as all scalars
// and `hyperparameters` do, in the memory of the device that computes.
//
// Rounding: every operation is one FP32 operation, rounded to nearest even; no multiply
// and add are contracted into one. So all devices give the same bits, unless one flushes
// numbers below 2^-126 to zero, as TensorFlow has a CPU do. Sums of squares, which the
// norms of kLamb and the means of kAdafactor need, too, depend on the instruction set.
// Their accumulator is FP32 for at most 1024 elements, and double beyond. Their relative
// error is at most 2^-14.

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

// A master M and its 16-bit weight W, of which a variable holds
//
//   master                M; an FP32 variable is its own weight
//   master, weight        M and W
//   weight, remainder     W and the remainder r, which is what M has beyond W
//   weight, short_remainder   the same in 8 bits, q: a master of 24 bits
//   weight                W alone: M is W before a step, and rounded stochastically after
//
// Only pairs of a master and a weight can be synchronized and cast by themselves.
//
// The remainder, with the bits of FP32 numbers as integers:
//
//   M = W                          where W is inf or NaN; r = 0
//   M = W + r 2^-40                where |W| <= 2^-14 in FP16; M = W for r = 0
//   bits(M) = bits(W) + r          elsewhere
//
// r is rounded to nearest even, and saturates: in the last line of FP16 at 4096, half of
// the ulp of W. W is M rounded to nearest even, so that W and r are M exactly in FP16 for
// 2^-14 < |W| and |M| <= 65520, and in bfloat16 but where M is half-way above an even W:
// there M moves by its ulp towards W. Up to 2^-14 the error is at most 2^-41, or 2^-40
// half-way above an even W; 0 for |M| >= 2^-17 elsewhere. A weight that something else
// wrote keeps its remainder: M is at most half an ulp from it.
//
// q stands for r = 2^8 q; in FP16 for r = 2^5 q where |W| > 2^-14. So M is a number with
// eight bits of fraction more than W: 18 in FP16, down to a spacing of 2^-32, and 15 in
// bfloat16, down to 2^-125. After a step M is rounded to one of its two neighbours among
// them, stochastically, with the random numbers of the weight: to nearest, updates below
// half the spacing would be lost. q is between -127 and 127, so that no M is half-way
// between two weights; one that comes to be there moves on to a neighbour on either side,
// at random. So the expectation of M is its value before, and the error is less than the
// spacing, or than twice that beside such a place.
struct MasterPair {
  std::int64_t size = 0;
  float* master = nullptr;
  DataType type = DataType::kHalf;  // of the weight: kHalf or kBfloat16
  std::uint16_t* weight = nullptr;
  std::int16_t* remainder = nullptr;
  std::int8_t* short_remainder = nullptr;
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
//   kLamb      [m, v]  m and v as in kAdam;
//                      d = (m / m_divisor) / (sqrt(v / v_divisor) + epsilon);
//                      w -= (|w| / |d|) lr d, where |x| is the norm of a whole variable;
//                      w -= lr d where either of them is 0. Only on a CPU
//   kAdafactor  [v, r, c]  h = g^2 + epsilon; of each matrix in the last two dimensions
//                      r = beta_2 r + (1 - beta_2) the mean of h over each row,
//                      c = beta_2 c + (1 - beta_2) the mean of h over each column,
//                      v = c r / (the mean of r);
//                      of fewer dimensions, without r and c, v = beta_2 v + (1 - beta_2) h;
//                      d = g / sqrt(v), and with rms over the whole variable
//                      w -= alpha max(epsilon_2, rms(w)) d / max(1, rms(d) / threshold).
//                      Only on a CPU
enum class UpdateRule {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) rule,
#include "keras_mp/update_rules.def"
};

#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) +1
constexpr int kUpdateRules = 0
#include "keras_mp/update_rules.def"
    ;
constexpr int kMostSlots = 3;

// The elements of a compressed slot that share an exponent.
constexpr std::int64_t kSlotGroup = 32;

constexpr std::int64_t SlotGroupsOf(std::int64_t size) {
  return (size + kSlotGroup - 1) / kSlotGroup;
}

constexpr std::int64_t SlotPairsOf(std::int64_t size) {
  return SlotGroupsOf(size) * (kSlotGroup / 2);
}

// The numbers of one slot: FP32 `values`; or `codes` of 8 bits, or `pairs`, bytes of two
// codes of 4 bits, and `exponents` of 8 bits, one for each kSlotGroup neighbouring
// elements, of which the last group may have fewer.
//
// A group has the least exponent e for which all |x| are at most a 2^(e - 127), and no
// more than 253; or 0 if all its numbers are subnormal or 0, and then all are stored as 0.
// A code is a floating-point number t with f bits of fraction, t = |x| 2^(127 - e), normal
// from c on, a multiple of c / 2^f below, and a at most:
//
//   8 bits  signed    a sign bit, 4 bits of exponent, f = 3; c = 2^-14, a = 1.875
//           unsigned  5 bits of exponent, f = 3; c = 2^-30, a = 1.875
//   4 bits  signed    a sign bit, 2 bits of exponent, f = 1; c = 2^-2, a = 1.5
//           unsigned  3 bits of exponent, f = 1; c = 2^-7, a = 1: one more than the bits
//                     of the code, so that it has no 0
//
// inf, NaN and what is larger become the largest code. Rounding is stochastic and
// unbiased: with the probability of its distance to the code below, a number becomes the
// code above, for a random number of 23 - f bits. But an unsigned number that is not 0 has
// a code that is not 0, so that no step divides by a second moment that vanished; in 4 bits
// all numbers of a group, 0 too, become at least c / 2.
//
// A group has 16 pairs, also where it is not full: the i-th has the code of element i in
// its low bits, and of element i + 16 in its high bits. What is behind the last element
// has the code 0.
//
// The random numbers are a hash of the element's index, of the slot's, and of `noise`,
// noise_high 2^16 + noise_low, which should differ from step to step. So are those for
// weights without a master, which have kMostSlots for the slot's index.
struct Slot {
  float* values = nullptr;
  std::uint8_t* codes = nullptr;
  std::uint8_t* exponents = nullptr;  // [SlotGroupsOf(size)]
  std::uint8_t* pairs = nullptr;      // [SlotPairsOf(size)]
};

constexpr int SlotsOf(UpdateRule rule) {
  switch (rule) {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) \
  case UpdateRule::rule:                                      \
    return static_cast<int>(sizeof(slots)) - 1;
#include "keras_mp/update_rules.def"
  }
  return 0;
}

// Whether a step of the rule depends on norms of the whole variable. It then takes several
// passes over it.
constexpr bool NeedsNorms(UpdateRule rule) {
  switch (rule) {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) \
  case UpdateRule::rule:                                      \
    return needs_norms;
#include "keras_mp/update_rules.def"
  }
  return false;
}

// What a step takes, as `powers`, of the tokens whose sum is a gradient. kAdadelta, kLamb
// and kAdafactor would need more than their squares.
enum class Tokens { kNothing, kSquares, kMagnitudes };

constexpr bool TakesPowers(UpdateRule rule) {
  switch (rule) {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) \
  case UpdateRule::rule:                                      \
    return Tokens::tokens != Tokens::kNothing;
#include "keras_mp/update_rules.def"
  }
  return false;
}

// How the codes of a rule's slot are: a second moment has no sign.
enum class SlotCode { kNone, kSigned, kUnsigned };

// kNone where the rule has no such slot, or it can be FP32 only.
constexpr SlotCode SlotCodeOf(UpdateRule rule, int slot) {
  if (slot >= SlotsOf(rule)) return SlotCode::kNone;
  switch (rule) {
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) \
  case UpdateRule::rule:                                      \
    return slots[slot] == 'S'   ? SlotCode::kSigned           \
           : slots[slot] == 'U' ? SlotCode::kUnsigned         \
                                : SlotCode::kNone;
#include "keras_mp/update_rules.def"
  }
  return SlotCode::kNone;
}

struct UpdateHyperparameters {
#define KERAS_MP_HYPERPARAMETER(name, value) float name = value;
#include "keras_mp/update_rules.def"
};

// The matrices in the last two dimensions of a variable; none where it has fewer.
struct Matrices {
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// The elements of a slot of a variable of `size` elements; 0 where the rule has no use for
// it, and it may be null.
constexpr std::int64_t SlotSize(UpdateRule rule, int slot, std::int64_t size,
                                const Matrices& matrices) {
  if (rule != UpdateRule::kAdafactor || slot == 0) return size;
  return matrices.count * (slot == 1 ? matrices.rows : matrices.columns);
}

// `powers`: null, or what stands for g^2, and in kAdamax for |g|: of a sparse gradient the
// squares, or magnitudes, of the un-scaled tokens of a row, added up. They are not clipped.
// Only on a CPU, for rules that take them.
struct Parameter {
  Gradient gradient;
  const float* powers = nullptr;
  Slot slots[kMostSlots];  // SlotsOf(rule) of them
  bool apply_weight_decay = false;
  MasterPair pair;
  const float* uniforms = nullptr;  // for stochastic rounding of a pair with a master
};

// The arguments of a step. Before the rule, FP32 masters are synchronized from their
// weights as by SyncMastersFromWeights; after it, they are cast as by CastMasters, with
// `rounding`. A weight with a remainder is its master rounded to nearest.
struct Update {
  std::int64_t count = 0;
  const Parameter* parameters = nullptr;
  UpdateRule rule = UpdateRule::kSgd;
  Rounding rounding = Rounding::kNearest;
  const Matrices* matrices = nullptr;  // [count], of kAdafactor; null for other rules
  const UpdateHyperparameters* hyperparameters = nullptr;  // [1]
  const bool* finite = nullptr;  // [1]: if false, nothing is written; null means true
};

}  // namespace keras_mp

#endif  // KERAS_MP_UPDATE_H_
