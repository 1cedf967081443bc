// Shared by attention and its gradient: the workspace, and the tensors of one head, for one
// instruction set. A template, as cpu/gemm/gemm_kernel_simd.h.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_HEAD_TENSORS_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_HEAD_TENSORS_SIMD_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/ceil_div.h"
#include "cpu/attention/attention_kernel.h"
#include "cpu/attention/block_product.h"
#include "cpu/attention/scores_simd.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

// Hands out pieces of a workspace; counts their bytes where it is null.
template <class Simd>
class PiecesOf {
 public:
  explicit PiecesOf(void* workspace) : start_(static_cast<char*>(workspace)) {}

  template <class Element>
  void Take(std::int64_t count, Element** piece) {
    *piece = start_ == nullptr ? nullptr : reinterpret_cast<Element*>(start_ + bytes_);
    bytes_ += RoundUp(count * sizeof(Element), std::size_t{64});
  }

  std::size_t bytes() const { return bytes_; }

 private:
  char* start_;
  std::size_t bytes_ = 0;
};

// The tensors of a format: how they are read, multiplied and written.
template <class Simd, class Format>
struct HeadTensors {
  using Float = typename Simd::Float;
  using Element = typename Format::Element;
  using Step = typename StepFor<Simd, Format>::Type;
  using Tensors = BlockProduct<Simd, Step>;
  using Floats = BlockProduct<Simd, MultiplyAdd<Simd>>;
  // How the tensors, and a tile of FP32 numbers, are read as an operand of Tensors: pairs
  // of numbers in one part are rounded.
  static constexpr bool kPairs = Step::kElements > 1, kInParts = Step::kParts > 1;
  using Stored = StoredSource<Simd, Format>;
  using FromTile = std::conditional_t<kPairs && !kInParts, RoundedSource<Simd, Format>,
                                      StoredSource<Simd, Single<Simd>>>;
  using Packed = typename Tensors::Packed;
  using Pieces = PiecesOf<Simd>;
  using Row = Scores<Simd>;
  static constexpr std::int64_t kBlock = kAttentionBlock, kWidth = Simd::kWidth;
  static constexpr std::int64_t kTile = kBlock * kBlockStride;

  // The vectors of one head of a tensor [batch, length, heads, size], one in a row.
  static MatrixView HeadOf(const void* tensor, std::int64_t length, std::int64_t heads,
                           std::int64_t size, std::int64_t batch, std::int64_t head,
                           std::int64_t first) {
    const std::int64_t row = heads * size;
    const MatrixView all = {tensor, TypeOf(), row, 1};
    return all.Moved((batch * length + first) * row + head * size);
  }

  static constexpr DataType TypeOf() {
    return sizeof(Element) == sizeof(float) ? DataType::kFloat : DataType::kHalf;
  }

  static MatrixView Query(const Attention& a, std::int64_t batch, std::int64_t head,
                          std::int64_t first) {
    return HeadOf(a.query, a.queries, a.heads, a.key_size, batch, head, first);
  }
  static MatrixView Key(const Attention& a, std::int64_t batch, std::int64_t head,
                        std::int64_t first) {
    return HeadOf(a.key, a.keys, a.key_heads, a.key_size, batch, head, first);
  }
  static MatrixView Value(const Attention& a, std::int64_t batch, std::int64_t head,
                          std::int64_t first) {
    return HeadOf(a.value, a.keys, a.key_heads, a.value_size, batch, head, first);
  }

  // Writes factor * from[0, size) in the format.
  static void Round(const float* from, float factor, std::int64_t size, Element* to) {
    ForEachVector<Simd, Format>(size, [&](auto part, int v, std::int64_t i) {
      part.Store(to + i, v, part.Load(from + i, v) * factor);
    });
  }

  // Rounds the rows of `sums` into the vectors of a head.
  static void RoundRows(const float* sums, std::int64_t row, std::int64_t rows,
                        std::int64_t size, float factor, const MatrixView& to) {
    auto* first = static_cast<Element*>(const_cast<void*>(to.data));
    for (std::int64_t r = 0; r < rows; ++r) {
      Round(sums + r * row, factor, size, first + r * to.row);
    }
  }

  static bool Has(const float* numbers, std::int64_t count, float number) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (numbers[i] == number) return true;
    }
    return false;
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_HEAD_TENSORS_SIMD_H_
