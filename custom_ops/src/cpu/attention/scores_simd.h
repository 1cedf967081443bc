// A tile of scores of the attention kernel, for one instruction set: scale and masks, the
// softmax as far as its keys are known, and its gradient. A template, as
// cpu/gemm/gemm_kernel_simd.h.
//
// Row r of a tile has the scores of one query with `columns` consecutive keys, at r *
// kBlockStride. The lanes of its last vector beyond them become 0.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_SCORES_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_SCORES_SIMD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/attention_dropout.h"
#include "cpu/attention/block_product.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_math.h"
#include "keras_mp/attention.h"

namespace keras_mp {

// The score of a hidden key: half of the lowest number, so that its difference to any
// score is finite.
inline constexpr float kHiddenScore = std::numeric_limits<float>::lowest() / 2;
// The log_sum_exp of a query that sees no key.
inline constexpr float kSeesNoKey = -std::numeric_limits<float>::infinity();

template <class Simd>
struct Scores {
  using Float = typename Simd::Float;
  using Ints = typename Simd::Ints;
  using Words = typename Simd::Words;
  using Math = VectorMath<Simd>;
  static constexpr int kWidth = Simd::kWidth;

  static Ints LaneNumbers() {
    Ints lane;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    return lane;
  }

  // The first `count` lanes of x, and the others as `rest`.
  static Float First(std::int64_t count, Float x, float rest) {
    if (count >= kWidth) return x;
    return LaneNumbers() < static_cast<int>(std::max<std::int64_t>(count, 0))
               ? x
               : Broadcast<Simd>(rest);
  }

  // The mask of one query and the keys of a tile.
  struct MaskRow {
    const std::uint8_t* bytes;  // null for none
    std::int64_t step;          // 0 or 1
    std::int64_t visible;       // keys before the causal limit

    MaskRow(const Attention& a, std::int64_t batch, std::int64_t head,
            std::int64_t query, std::int64_t key, std::int64_t columns)
        : bytes(nullptr), step(a.mask_strides[3]), visible(columns) {
      if (a.mask != nullptr) {
        bytes = a.mask + batch * a.mask_strides[0] + head * a.mask_strides[1] +
                query * a.mask_strides[2] + key * step;
      }
      if (a.is_causal) visible = std::min(columns, query - key + 1);
    }

    // The lanes of x, the scores from column c on, that the query sees.
    Float Apply(Float x, std::int64_t c, std::int64_t columns) const {
      if (bytes != nullptr) {
        if (step == 0) {
          if (*bytes == 0) x = Broadcast<Simd>(kHiddenScore);
        } else {
          x = Read(bytes + c, columns - c) != 0u ? x : Broadcast<Simd>(kHiddenScore);
        }
      }
      x = First(visible - c, x, kHiddenScore);
      return First(columns - c, x, -std::numeric_limits<float>::infinity());
    }

    static Words Read(const std::uint8_t* from, std::int64_t count) {
      if (count >= kWidth) return Simd::LoadBytes(from);
      std::uint8_t all[kWidth] = {};
      std::memcpy(all, from, count);
      return Simd::LoadBytes(all);
    }
  };

  // The dropout of one query and the keys of a tile, which begin with `key`.
  struct DropRow {
    AttentionDropout<Simd> dropout;
    std::uint32_t key;

    DropRow(const Attention& a, std::int64_t batch, std::int64_t head, std::int64_t query,
            std::int64_t key)
        : dropout(a, batch, head, query), key(static_cast<std::uint32_t>(key)) {}

    // Whether the weights of the keys from column c on are kept.
    Ints Keeps(std::int64_t c) const {
      const Words keys =
          reinterpret_cast<Words>(LaneNumbers()) + (key + static_cast<std::uint32_t>(c));
      return dropout.Bits(keys) >= dropout.threshold;
    }
    Float Drop(Ints keeps, Float x) const {
      return keeps ? x * dropout.factor : Float{};
    }
  };

  // Without dropout.
  struct KeepRow {
    KeepRow(const Attention&, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}

    bool Keeps(std::int64_t) const { return true; }
    Float Drop(bool, Float x) const { return x; }
  };

  // Turns the products of a query with keys into scores, and returns the largest, but no
  // less than `most`. Ignores NaN, which makes the sum of its row NaN.
  static float ScaleAndMask(float* row, std::int64_t columns, float scale,
                            const MaskRow& mask, float most) {
    Float largest = Broadcast<Simd>(most);
    for (std::int64_t c = 0; c < columns; c += kWidth) {
      const Float x = mask.Apply(Load<Simd>(row + c) * scale, c, columns);
      Store<Simd>(row + c, x);
      largest = Simd::Max(x, largest);
    }
    return Lanes<Simd>::Max(largest);
  }

  // Turns scores into exp(score - shift) with dropout, and returns their sum without.
  template <class Drops>
  static float Exponentials(float* row, std::int64_t columns, float shift,
                            const Drops& drops) {
    Float sum = {};
    for (std::int64_t c = 0; c < columns; c += kWidth) {
      const Float e = Math::Exp(Load<Simd>(row + c) - shift);
      Store<Simd>(row + c, drops.Drop(drops.Keeps(c), e));
      sum += e;
    }
    return Lanes<Simd>::Sum(sum);
  }

  // Turns the products of a query with keys into probabilities p with dropout, d * p, and
  // those of its gradient with values, `slopes`, into p * (d * slopes - mean).
  template <class Drops>
  static void Gradients(float* row, float* slopes, std::int64_t columns, float scale,
                        const MaskRow& mask, float log_sum_exp, float mean,
                        std::int64_t keys, const Drops& drops) {
    if (log_sum_exp == kSeesNoKey) {
      const Float equal = Broadcast<Simd>(1 / static_cast<float>(keys));
      for (std::int64_t c = 0; c < columns; c += kWidth) {
        Store<Simd>(row + c, drops.Drop(drops.Keeps(c), equal));
        Store<Simd>(slopes + c, Float{});
      }
      return;
    }
    for (std::int64_t c = 0; c < columns; c += kWidth) {
      const auto keeps = drops.Keeps(c);
      const Float x = mask.Apply(Load<Simd>(row + c) * scale, c, columns);
      const Float p = Math::Exp(x - log_sum_exp);
      Store<Simd>(row + c, drops.Drop(keeps, p));
      Store<Simd>(slopes + c, p * (drops.Drop(keeps, Load<Simd>(slopes + c)) - mean));
    }
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_SCORES_SIMD_H_
