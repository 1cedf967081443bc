// Attention in one pass over blocks of keys, without the matrix of scores in memory, and
// its gradient. "Mixed Precision Training" (Micikevicius et al., 2018, section 3.3) is
// about the accumulators, "FlashAttention" (Dao et al., 2022) about the blocks.
//
//   s[t, c] = scale * sum over h of query[t, h] * key[c, h]
//   p[t, c] = exp(s[t, c]) / sum over d of exp(s[t, d])
//   result[t, v] = round(sum over c of d[t, c] * p[t, c] * value[c, v])
//   log_sum_exp[t] = log(sum over c of exp(s[t, c]))
//
// for each head, and with grad = the gradient of the result,
//
//   g[t, c] = p[t, c] * sum over v of grad[t, v] * (d[t, c] * value[c, v] - result[t, v])
//   grad_query[t, h] = round(scale * sum over c of g[t, c] * key[c, h])
//   grad_key[c, h] = round(scale * sum over t of g[t, c] * query[t, h])
//   grad_value[c, v] = round(sum over t of d[t, c] * p[t, c] * grad[t, v])
//
// d is 1 without dropout. With it, d[t, c] is 0 where a hash of 32 bits of (seed, batch,
// head, t, c) is below floor(2^32 * dropout), and else 1 / (1 - dropout). So it is the
// same forward and backward, on every instruction set, and wherever blocks begin;
// common/attention_dropout.h has the hash. Weights are dropped with a probability that is
// a multiple of 2^-32. The sum of the softmax is that of all weights.
//
// A query does not see a key that the mask, or with is_causal a key c > t, hides from it:
// its p is 0. A query that sees no key has p = 1 / keys for all of them, as the softmax of
// equal numbers, and its g is 0; without keys, the result is 0.
//
// Accumulator: FP32 for s, p, g and the sums. Where s errs by at most e before the softmax,
// (key_size + 2) * 2^-24 * scale * sum |query| |key|, p errs by at most 2 e + (keys + 64) *
// 2^-24 of itself, and the result by twice that of sum d p |value|; 1 / (1 - dropout) and
// the product with it are rounded to FP32. The gradients compute p again from log_sum_exp,
// which errs by 2^-24 of itself, and read the rounded result. On avx512_bf16, amx_bf16 and
// amx_fp16, bfloat16 is multiplied by dot products: they flush numbers and sums below
// 2^-126 to 0, and d p and g are rounded to bfloat16 as operands of the sums of the
// gradients. On amx_bf16 and amx_fp16, an FP16 number is the exact sum of two of bfloat16,
// and d p and g, as the sum of two, err by another 2^-16 of themselves and 2^-126.
// Rounding: once, to nearest even. NaN and inf make the rows that see them NaN. Scores are
// above -1.7e38.

#ifndef KERAS_MP_ATTENTION_H_
#define KERAS_MP_ATTENTION_H_

#include <cstdint>

#include "keras_mp/data_type.h"

namespace keras_mp {

// query is [batch, queries, heads, key_size], key [batch, keys, key_heads, key_size],
// value [batch, keys, key_heads, value_size] and result [batch, queries, heads,
// value_size], packed; a gradient has the shape of its tensor. log_sum_exp is [batch,
// heads, queries]; it is -inf where a query sees no key. `heads` is a multiple of
// key_heads: consecutive heads share one of the keys and values.
struct Attention {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t key_size = 0;
  std::int64_t value_size = 0;
  DataType type = DataType::kHalf;  // of all tensors but log_sum_exp
  float scale = 1;
  bool is_causal = false;
  float dropout = 0;  // from [0, 1)
  std::uint32_t seed[2] = {0, 0};  // of the dropout

  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  // One byte for each pair of a query and a key, 0 where the key is hidden; none where
  // null. Its element for (b, head, t, c) is at the sum of index times stride; strides
  // are 0 where it is broadcast, and that along the keys is 0 or 1.
  const std::uint8_t* mask = nullptr;
  std::int64_t mask_strides[4] = {0, 0, 0, 0};
};

struct AttentionResult {
  void* result = nullptr;
  float* log_sum_exp = nullptr;
};

struct AttentionGradient {
  const void* result = nullptr;
  const float* log_sum_exp = nullptr;
  const void* grad = nullptr;
  void* grad_query = nullptr;
  void* grad_key = nullptr;
  void* grad_value = nullptr;
};

}  // namespace keras_mp

#endif  // KERAS_MP_ATTENTION_H_
