// Attention and its gradient for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h. keras_mp/attention.h has the formulas.
//
// Up to kAttentionBlock queries meet blocks of as many keys, one after the other. The
// result of the keys so far is kept for the largest score so far, and scaled down when a
// larger one comes. The gradient computes the scores of each block again, from the
// logarithm of the sum that is known by then.
//
// Products take the steps of the GEMM for the format of the tensors, which may be dot
// products of bfloat16: p and g are rounded then, as operands of the sums of the
// gradients. Not in the result, whose sums are of FP32 multiply-adds.
//
//   cmake --build build/cpp-plain --target attention_cpu_test &&
//     build/cpp-plain/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/ceil_div.h"
#include "cpu/attention/attention_kernel.h"
#include "cpu/attention/block_product.h"
#include "cpu/attention/scores_simd.h"
#include "cpu/simd/shuffle.h"
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

template <class Simd, class Format>
class AttentionIn {
  using Float = typename Simd::Float;
  using Element = typename Format::Element;
  using Step = typename VectorStepFor<Simd, Format>::Type;
  using Tensors = BlockProduct<Simd, Step>;
  using Floats = BlockProduct<Simd, MultiplyAdd<Simd>>;
  // How the tensors, and a tile of FP32 numbers, are read as an operand of Tensors.
  static constexpr bool kRounds = Step::kElements > 1;
  using Stored = StoredSource<Simd, Format>;
  using FromTile = std::conditional_t<kRounds, RoundedSource<Simd, Format>,
                                      StoredSource<Simd, Single<Simd>>>;
  using Packed = typename Tensors::Packed;
  using Pieces = PiecesOf<Simd>;
  using Row = Scores<Simd>;
  using MaskRow = typename Row::MaskRow;
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

  struct Workspace {
    Packed *queries, *keys;
    float *values, *scores, *result;

    Workspace(const Attention& a, Pieces& pieces) {
      pieces.Take(Tensors::SizeOfRows(a.key_size), &queries);
      pieces.Take(Tensors::SizeOfPanels(a.key_size, kBlock), &keys);
      pieces.Take(Floats::SizeOfPanels(kBlock, a.value_size), &values);
      pieces.Take(kTile, &scores);
      pieces.Take(kBlock * RoundUp(a.value_size, kWidth), &result);
    }
  };

 public:
  static std::size_t WorkspaceBytes(const Attention& a) {
    Pieces pieces(nullptr);
    Workspace workspace(a, pieces);
    return pieces.bytes();
  }

  static void Compute(const Attention& a, const AttentionResult& results,
                      const AttentionTask& task, void* memory) {
    Pieces pieces(memory);
    const Workspace workspace(a, pieces);
    const std::int64_t rows = task.queries.count, first = task.queries.first;
    const std::int64_t key_head = task.head / (a.heads / a.key_heads);
    const std::int64_t result_row = RoundUp(a.value_size, kWidth);
    float largest[kBlock], sum[kBlock];
    std::fill_n(largest, rows, kHiddenScore);
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(workspace.result, rows * result_row, 0.0f);
    Tensors::template PackRows<Stored>(Query(a, task.batch, task.head, first), rows,
                                       a.key_size, workspace.queries);
    for (std::int64_t key = 0; key < a.keys; key += kBlock) {
      // Beyond the causal limit only queries that see no key have anything to sum.
      const bool is_beyond = a.is_causal && key >= first + rows;
      if (is_beyond && !Has(largest, rows, kHiddenScore)) break;
      const std::int64_t columns = std::min(kBlock, a.keys - key);
      Tensors::template PackPanels<Stored>(Key(a, task.batch, key_head, key).Transposed(),
                                           a.key_size, columns, workspace.keys);
      Tensors::Multiply(workspace.queries, rows, workspace.keys, a.key_size, columns,
                        /*accumulate=*/false, workspace.scores, kBlockStride);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* scores = workspace.scores + r * kBlockStride;
        const MaskRow mask(a, task.batch, task.head, first + r, key, columns);
        const float before = largest[r];
        largest[r] = Row::ScaleAndMask(scores, columns, a.scale, mask, before);
        const float factor = largest[r] == before ? 1 : ExpOf(before - largest[r]);
        sum[r] = sum[r] * factor + Row::Exponentials(scores, columns, largest[r]);
        if (factor != 1) Scale(workspace.result + r * result_row, result_row, factor);
      }
      Floats::template PackPanels<Stored>(Value(a, task.batch, key_head, key), columns,
                                          a.value_size, workspace.values);
      Floats::Multiply(workspace.scores, rows, workspace.values, columns, a.value_size,
                       /*accumulate=*/true, workspace.result, result_row);
    }
    const MatrixView to = HeadOf(results.result, a.queries, a.heads, a.value_size,
                                 task.batch, task.head, first);
    float* log_sum_exp =
        results.log_sum_exp + (task.batch * a.heads + task.head) * a.queries + first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float inverse = a.keys == 0 ? 0 : 1 / sum[r];
      RoundRows(workspace.result + r * result_row, result_row, 1, a.value_size, inverse,
                to.At(r, 0));
      log_sum_exp[r] = LogSumExp(largest[r], sum[r], a.keys);
    }
  }

 private:
  static bool Has(const float* numbers, std::int64_t count, float number) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (numbers[i] == number) return true;
    }
    return false;
  }

  static float ExpOf(float x) { return Row::Math::Exp(Broadcast<Simd>(x))[0]; }

  static void Scale(float* row, std::int64_t size, float factor) {
    for (std::int64_t i = 0; i < size; i += kWidth) {
      Store<Simd>(row + i, Load<Simd>(row + i) * factor);
    }
  }

  // The sum is 0 where a query sees keys with a score of -inf alone.
  static float LogSumExp(float largest, float sum, std::int64_t keys) {
    if (largest > kHiddenScore) return largest + std::log(sum);
    return sum > 0 || keys == 0 ? kSeesNoKey : std::numeric_limits<float>::quiet_NaN();
  }

  struct GradientWorkspace {
    Packed *queries, *grads, *keys_across, *values_across;
    Packed *query_panels, *grad_panels, *key_panels, *packed;
    float *scores, *slopes;
    float *grad_query, *grad_key, *grad_value, *means;

    GradientWorkspace(const Attention& a, const AttentionGradientTask& task,
                      Pieces& pieces) {
      const std::int64_t key_row = RoundUp(a.key_size, kWidth);
      pieces.Take(Tensors::SizeOfRows(a.key_size), &queries);
      pieces.Take(Tensors::SizeOfRows(a.value_size), &grads);
      pieces.Take(Tensors::SizeOfPanels(a.key_size, kBlock), &keys_across);
      pieces.Take(Tensors::SizeOfPanels(a.value_size, kBlock), &values_across);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.key_size), &query_panels);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.value_size), &grad_panels);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.key_size), &key_panels);
      pieces.Take(Tensors::SizeOfRows(kBlock), &packed);
      for (float** tile : {&scores, &slopes}) pieces.Take(kTile, tile);
      pieces.Take(Queries(a, task) * key_row, &grad_query);
      pieces.Take(kBlock * key_row, &grad_key);
      pieces.Take(kBlock * RoundUp(a.value_size, kWidth), &grad_value);
      pieces.Take(Queries(a, task), &means);
    }

    // In all heads.
    static std::int64_t Queries(const Attention& a, const AttentionGradientTask& task) {
      return a.heads / a.key_heads * task.queries.count;
    }
  };

 public:
  static std::size_t GradientWorkspaceBytes(const Attention& a,
                                            const AttentionGradientTask& task) {
    Pieces pieces(nullptr);
    GradientWorkspace workspace(a, task, pieces);
    return pieces.bytes();
  }

  static void ComputeGradient(const Attention& a, const AttentionGradient& gradient,
                              const AttentionGradientTask& task, void* memory) {
    Pieces pieces(memory);
    const GradientWorkspace workspace(a, task, pieces);
    const Gradient one = {a, gradient, task, workspace};
    one.ComputeMeans();
    const std::int64_t end = task.keys.first + task.keys.count;
    if (task.computes_query) {
      const std::int64_t row = RoundUp(a.key_size, kWidth);
      std::fill_n(workspace.grad_query, GradientWorkspace::Queries(a, task) * row, 0.0f);
    }
    for (std::int64_t key = task.keys.first; key < end; key += kBlock) {
      one.MeetKeys({key, std::min(kBlock, end - key)});
    }
    if (task.computes_query) one.WriteGradQuery();
  }

 private:
  // The gradients of a task.
  struct Gradient {
    const Attention& a;
    const AttentionGradient& gradient;
    const AttentionGradientTask& task;
    const GradientWorkspace& workspace;

    std::int64_t group() const { return a.heads / a.key_heads; }
    std::int64_t key_row() const { return RoundUp(a.key_size, kWidth); }
    std::int64_t value_row() const { return RoundUp(a.value_size, kWidth); }

    // A tensor of the shape of the result.
    MatrixView ResultLike(const void* tensor, std::int64_t head,
                          std::int64_t first) const {
      return HeadOf(tensor, a.queries, a.heads, a.value_size, task.batch, head, first);
    }

    const float* LogSumExps(std::int64_t head, std::int64_t first) const {
      return gradient.log_sum_exp + (task.batch * a.heads + head) * a.queries + first;
    }

    // Calls body(head, queries, at) for blocks of the queries of each head; the first
    // query of a block is the at-th of the task.
    template <class Body>
    void ForQueries(const Body& body) const {
      const std::int64_t end = task.queries.first + task.queries.count;
      for (std::int64_t g = 0; g < group(); ++g) {
        for (std::int64_t query = task.queries.first; query < end; query += kBlock) {
          body(task.key_head * group() + g, Span{query, std::min(kBlock, end - query)},
               g * task.queries.count + query - task.queries.first);
        }
      }
    }

    // means[t] = sum over v of grad[t, v] * result[t, v], the mean of grad * value.
    void ComputeMeans() const {
      ForQueries([&](std::int64_t head, Span queries, std::int64_t at) {
        const MatrixView grads = ResultLike(gradient.grad, head, queries.first);
        const MatrixView results = ResultLike(gradient.result, head, queries.first);
        const auto* x = static_cast<const Element*>(grads.data);
        const auto* y = static_cast<const Element*>(results.data);
        for (std::int64_t r = 0; r < queries.count; ++r) {
          Float sum = {};
          const std::int64_t at_row = r * grads.row;
          ForEachVector<Simd, Format>(a.value_size, [&](auto part, int v, std::int64_t i) {
            sum += part.Load(x + at_row + i, v) * part.Load(y + at_row + i, v);
          });
          workspace.means[at + r] = Lanes<Simd>::Sum(sum);
        }
      });
    }

    void MeetKeys(Span keys) const {
      const MatrixView key = Key(a, task.batch, task.key_head, keys.first);
      const MatrixView value = Value(a, task.batch, task.key_head, keys.first);
      Tensors::template PackPanels<Stored>(key.Transposed(), a.key_size, keys.count,
                                           workspace.keys_across);
      Tensors::template PackPanels<Stored>(value.Transposed(), a.value_size, keys.count,
                                           workspace.values_across);
      if (task.computes_query) {
        Tensors::template PackPanels<Stored>(key, keys.count, a.key_size,
                                             workspace.key_panels);
      }
      if (task.computes_key) {
        std::fill_n(workspace.grad_key, keys.count * key_row(), 0.0f);
        std::fill_n(workspace.grad_value, keys.count * value_row(), 0.0f);
      }
      ForQueries([&](std::int64_t head, Span queries, std::int64_t at) {
        if (!Meet(head, queries, keys)) return;
        ComputeScores(head, queries, keys, at);
        if (task.computes_query) AddToGradQuery(queries, keys, at);
        if (task.computes_key) AddToGradKeyAndValue(head, queries, keys);
      });
      if (task.computes_key) WriteGradKeyAndValue(keys);
    }

    // Whether any of the queries sees a key, or sees no key at all.
    bool Meet(std::int64_t head, Span queries, Span keys) const {
      if (!a.is_causal || keys.first < queries.first + queries.count) return true;
      return Has(LogSumExps(head, queries.first), queries.count, kSeesNoKey);
    }

    // scores = p, and slopes = g / scale.
    void ComputeScores(std::int64_t head, Span queries, Span keys,
                       std::int64_t at) const {
      Tensors::template PackRows<Stored>(Query(a, task.batch, head, queries.first),
                                         queries.count, a.key_size, workspace.queries);
      Tensors::template PackRows<Stored>(ResultLike(gradient.grad, head, queries.first),
                                         queries.count, a.value_size, workspace.grads);
      Tensors::Multiply(workspace.queries, queries.count, workspace.keys_across,
                        a.key_size, keys.count, /*accumulate=*/false, workspace.scores,
                        kBlockStride);
      Tensors::Multiply(workspace.grads, queries.count, workspace.values_across,
                        a.value_size, keys.count, /*accumulate=*/false, workspace.slopes,
                        kBlockStride);
      const float* log_sum_exp = LogSumExps(head, queries.first);
      for (std::int64_t r = 0; r < queries.count; ++r) {
        const MaskRow mask(a, task.batch, head, queries.first + r, keys.first,
                           keys.count);
        Row::Gradients(workspace.scores + r * kBlockStride,
                       workspace.slopes + r * kBlockStride, keys.count, a.scale, mask,
                       log_sum_exp[r], workspace.means[at + r], a.keys);
      }
    }

    void AddToGradQuery(Span queries, Span keys, std::int64_t at) const {
      const MatrixView slopes = {workspace.slopes, DataType::kFloat, kBlockStride, 1};
      AddProduct(slopes, queries.count, keys.count, workspace.key_panels, a.key_size,
                 workspace.grad_query + at * key_row());
    }

    void AddToGradKeyAndValue(std::int64_t head, Span queries, Span keys) const {
      const MatrixView query = Query(a, task.batch, head, queries.first);
      const MatrixView grad = ResultLike(gradient.grad, head, queries.first);
      const MatrixView scores = {workspace.scores, DataType::kFloat, 1, kBlockStride};
      const MatrixView slopes = {workspace.slopes, DataType::kFloat, 1, kBlockStride};
      Tensors::template PackPanels<Stored>(grad, queries.count, a.value_size,
                                           workspace.grad_panels);
      AddProduct(scores, keys.count, queries.count, workspace.grad_panels, a.value_size,
                 workspace.grad_value);
      Tensors::template PackPanels<Stored>(query, queries.count, a.key_size,
                                           workspace.query_panels);
      AddProduct(slopes, keys.count, queries.count, workspace.query_panels, a.key_size,
                 workspace.grad_key);
    }

    // sums += a tile [rows, depth], or its transpose, times packed panels of `size`
    // columns.
    void AddProduct(const MatrixView& tile, std::int64_t rows, std::int64_t depth,
                    const Packed* panels, std::int64_t size, float* sums) const {
      Tensors::Multiply(Pack(tile, rows, depth), rows, panels, depth, size,
                        /*accumulate=*/true, sums, RoundUp(size, kWidth));
    }

    const Packed* Pack(const MatrixView& tile, std::int64_t rows,
                       std::int64_t depth) const {
      if constexpr (!kRounds) {
        // It is packed already where its rows are those of A.
        if (tile.column == 1) return static_cast<const Packed*>(tile.data);
      }
      Tensors::template PackRows<FromTile>(tile, rows, depth, workspace.packed);
      return workspace.packed;
    }

    void WriteGradKeyAndValue(Span keys) const {
      RoundRows(workspace.grad_key, key_row(), keys.count, a.key_size, a.scale,
                HeadOf(gradient.grad_key, a.keys, a.key_heads, a.key_size, task.batch,
                       task.key_head, keys.first));
      RoundRows(workspace.grad_value, value_row(), keys.count, a.value_size, 1,
                HeadOf(gradient.grad_value, a.keys, a.key_heads, a.value_size, task.batch,
                       task.key_head, keys.first));
    }

    void WriteGradQuery() const {
      ForQueries([&](std::int64_t head, Span queries, std::int64_t at) {
        RoundRows(workspace.grad_query + at * key_row(), key_row(), queries.count,
                  a.key_size, a.scale,
                  HeadOf(gradient.grad_query, a.queries, a.heads, a.key_size, task.batch,
                         head, queries.first));
      });
    }
  };
};

// Selects the format of the tensors.
template <class Simd>
struct AttentionOf {
  template <class Function>
  static auto With(DataType type, const Function& function) {
    switch (type) {
      case DataType::kHalf:
        return function(AttentionIn<Simd, Half<Simd>>());
      case DataType::kBfloat16:
        return function(AttentionIn<Simd, Bfloat16<Simd>>());
      case DataType::kFloat:
        break;
    }
    return function(AttentionIn<Simd, Single<Simd>>());
  }

  static std::size_t WorkspaceBytes(const Attention& a) {
    return With(a.type, [&](auto in) { return in.WorkspaceBytes(a); });
  }
  static void Compute(const Attention& a, const AttentionResult& result,
                      const AttentionTask& task, void* workspace) {
    With(a.type, [&](auto in) { in.Compute(a, result, task, workspace); });
  }
  static std::size_t GradientWorkspaceBytes(const Attention& a,
                                            const AttentionGradientTask& task) {
    return With(a.type, [&](auto in) { return in.GradientWorkspaceBytes(a, task); });
  }
  static void ComputeGradient(const Attention& a, const AttentionGradient& gradient,
                              const AttentionGradientTask& task, void* workspace) {
    With(a.type, [&](auto in) { in.ComputeGradient(a, gradient, task, workspace); });
  }
};

template <class Simd>
constexpr AttentionKernel kAttention = {
    AttentionOf<Simd>::WorkspaceBytes,
    AttentionOf<Simd>::Compute,
    AttentionOf<Simd>::GradientWorkspaceBytes,
    AttentionOf<Simd>::ComputeGradient,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_
