// The interface between cpu/attention/attention.cc, which cuts an attention into tasks,
// and the kernel that each instruction set has.

#ifndef KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_H_
#define KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/attention.h"

namespace keras_mp {

// The most queries and keys of a tile of scores.
inline constexpr std::int64_t kAttentionBlock = 128;

// Consecutive queries or keys.
struct Span {
  std::int64_t first, count;
};

// Up to kAttentionBlock queries of one head.
struct AttentionTask {
  std::int64_t batch, head;
  Span queries;
};

// Queries of all heads that share a head of the keys, and keys of it.
struct AttentionGradientTask {
  std::int64_t batch, key_head;
  Span queries, keys;
  bool computes_query, computes_key;  // and value
};

// `workspace` is aligned to 64 bytes. The gradients have the same bits whatever tasks
// they are cut into: those of the queries need all keys, those of keys and values all
// queries.
struct AttentionKernel {
  std::size_t (*workspace_bytes)(const Attention& attention);
  void (*compute)(const Attention& attention, const AttentionResult& result,
                  const AttentionTask& task, void* workspace);
  std::size_t (*gradient_workspace_bytes)(const Attention& attention,
                                          const AttentionGradientTask& task);
  void (*compute_gradient)(const Attention& attention, const AttentionGradient& gradient,
                           const AttentionGradientTask& task, void* workspace);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_H_
