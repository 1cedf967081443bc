// Shuffles between the lanes of vectors: the transpose of a square, the horizontal sum.

#ifndef KERAS_MP_SRC_CPU_SIMD_SHUFFLE_H_
#define KERAS_MP_SRC_CPU_SIMD_SHUFFLE_H_

#include <cstddef>
#include <utility>

namespace keras_mp {

// GCC has the builtin of Clang since version 12.
#if defined(__clang__) || __GNUC__ >= 12
#define KERAS_MP_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KERAS_MP_SHUFFLE(a, b, ...) \
  __builtin_shuffle(a, b, typename Simd::Ints{__VA_ARGS__})
#endif

template <class Simd>
class Lanes {
 public:
  using Vector = typename Simd::Float;
  static constexpr int kWidth = Simd::kWidth;

  // Transposes kWidth vectors of kWidth lanes in place.
  static void Transpose(Vector (&square)[kWidth]) {
    ExchangeBlocks<kWidth / 2>(square, All());
  }

  // The sum, and the largest, of all lanes, by halving.
  static float Sum(Vector x) {
    return Fold<kWidth / 2>(x, [](Vector a, Vector b) { return a + b; }, All());
  }
  static float Max(Vector x) {
    return Fold<kWidth / 2>(x, Simd::Max, All());
  }

 private:
  using All = std::make_index_sequence<kWidth>;

  // Exchanges the off-diagonal blocks of kBlock lanes, then those of the smaller sizes.
  template <int kBlock, std::size_t... kLane>
  static void ExchangeBlocks(Vector (&square)[kWidth],
                             std::index_sequence<kLane...> all) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if (i & kBlock) continue;
      const Vector upper = square[i], lower = square[i + kBlock];
      square[i] =
          KERAS_MP_SHUFFLE(upper, lower,
                           (kLane & kBlock ? kWidth + kLane - kBlock : kLane)...);
      square[i + kBlock] =
          KERAS_MP_SHUFFLE(upper, lower,
                           (kLane & kBlock ? kWidth + kLane : kLane + kBlock)...);
    }
    if constexpr (kBlock > 1) ExchangeBlocks<kBlock / 2>(square, all);
  }

  template <int kHalf, class Operation, std::size_t... kLane>
  static float Fold(Vector x, const Operation& operation,
                    std::index_sequence<kLane...> all) {
    x = operation(x, KERAS_MP_SHUFFLE(x, x, (kLane ^ kHalf)...));
    if constexpr (kHalf > 1) return Fold<kHalf / 2>(x, operation, all);
    return x[0];
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_SHUFFLE_H_
