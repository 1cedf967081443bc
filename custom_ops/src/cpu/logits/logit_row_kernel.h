// The interface between cpu/logits/logit_statistics.cc, which goes over blocks of logits,
// and the computation on one row of a block, which each instruction set has.

#ifndef KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_H_
#define KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_H_

#include <cstdint>
#include <limits>

#include "keras_mp/logit_statistics.h"

namespace keras_mp {

// The logits of one row for a block of `count` words, before the cap.
struct LogitRow {
  float* z;
  std::int64_t count;
  float soft_cap;        // none where 0
  std::int64_t label;    // within the block; another number where it is elsewhere
  const float* targets;  // [count]; null where there are labels
};

// What is known of a row after some blocks: the sum is that of exp(z - maximum).
struct RowStatistics {
  float maximum = -std::numeric_limits<float>::infinity();
  float exponentials = 0;
  float target = 0;
  float total = 0;
  std::int32_t argmax = 0;
};

// The upstream gradients of a row.
struct RowUpstream {
  float logsumexp;
  float grad_logsumexp, grad_target, grad_total;
};

struct LogitRowKernel {
  // Adds a block whose first word is `first`. Overwrites the logits.
  void (*add)(const LogitRow& row, std::int64_t first, RowStatistics* statistics);
  // Writes g * scale in the type to slopes [count], which may be those of the logits, and
  // adds g to bias_sums [count], unless they are null.
  void (*differentiate)(const LogitRow& row, const RowUpstream& upstream, DataType type,
                        float scale, void* slopes, float* bias_sums);
  // sums += terms.
  void (*accumulate)(const float* terms, std::int64_t count, float* sums);
  // to = round(sums), in the type.
  void (*round)(const float* sums, std::int64_t count, DataType type, void* to);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_LOGITS_LOGIT_ROW_KERNEL_H_
