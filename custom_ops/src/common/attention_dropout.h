// Which weights of an attention are dropped: a hash of their position, so that nothing is
// stored, and every block, thread and device decides alike.
//
//   call   = Mix(Mix(seed[0] + 0x9e3779b9) ^ seed[1])
//   head   = Mix(call + batch index * heads + head index)
//   first  = Mix(head + query)
//   second = Mix(first ^ head)
//   bits   = Mix(Mix(first + key) ^ second)
//
// modulo 2^32. As Mix is a bijection, no two queries of a call have the same first and
// second. keras_mp/ops/attention_dropout.py has the same formula.

#ifndef KERAS_MP_SRC_COMMON_ATTENTION_DROPOUT_H_
#define KERAS_MP_SRC_COMMON_ATTENTION_DROPOUT_H_

#include <cstdint>

#include "common/mix.h"
#include "keras_mp/attention.h"

namespace keras_mp {

// The dropout of one query. `Simd` has the type Words, std::uint32_t or a vector of it.
template <class Simd>
struct AttentionDropout {
  using Words = typename Simd::Words;

  std::uint32_t first, second;  // of a query
  std::uint32_t threshold;      // bits below it drop a weight
  float factor;                 // of the other weights

  AttentionDropout(const Attention& a, std::int64_t batch, std::int64_t head,
                   std::int64_t query)
      : threshold(static_cast<std::uint32_t>(0x1p32 * a.dropout)),
        factor(static_cast<float>(1 / (1 - static_cast<double>(a.dropout)))) {
    const std::uint32_t of_call = Mix(Mix(a.seed[0] + 0x9e3779b9u) ^ a.seed[1]);
    const std::uint32_t of_head =
        Mix(of_call + static_cast<std::uint32_t>(batch * a.heads + head));
    first = Mix(of_head + static_cast<std::uint32_t>(query));
    second = Mix(first ^ of_head);
  }

  // 32 bits for each key.
  Words Bits(Words key) const { return Mix<Words>(Mix<Words>(key + first) ^ second); }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_ATTENTION_DROPOUT_H_
