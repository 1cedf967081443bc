// The gradient of attention for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h. keras_mp/attention.h has the formulas.
//
// It computes the scores of each block of queries and keys again, from the logarithm of
// the sum that is known by then.
//
// Products take the steps of the GEMM for the format of the tensors, which may be dot
// products of bfloat16: p and g are rounded then, as operands of the sums, to bfloat16, or
// for tensors in FP16 to sums of two of its numbers.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_GRADIENT_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_GRADIENT_SIMD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/ceil_div.h"
#include "cpu/attention/attention_kernel.h"
#include "cpu/attention/head_tensors_simd.h"
#include "cpu/attention/scores_simd.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"

namespace keras_mp {

template <class Simd, class Format>
class AttentionBackward {
  using In = HeadTensors<Simd, Format>;
  using Float = typename In::Float;
  using Element = typename In::Element;
  using Tensors = typename In::Tensors;
  using Stored = typename In::Stored;
  using FromTile = typename In::FromTile;
  using Packed = typename In::Packed;
  using Pieces = typename In::Pieces;
  using Row = typename In::Row;
  using MaskRow = typename Row::MaskRow;
  static constexpr std::int64_t kBlock = In::kBlock, kWidth = In::kWidth;

  struct Workspace {
    Packed *queries, *grads, *keys_across, *values_across;
    Packed *query_panels, *grad_panels, *key_panels, *packed;
    float *scores, *slopes;
    float *grad_query, *grad_key, *grad_value, *means;

    Workspace(const Attention& a, const AttentionGradientTask& task, Pieces& pieces) {
      const std::int64_t key_row = RoundUp(a.key_size, kWidth);
      pieces.Take(Tensors::SizeOfRows(a.key_size), &queries);
      pieces.Take(Tensors::SizeOfRows(a.value_size), &grads);
      pieces.Take(Tensors::SizeOfPanels(a.key_size, kBlock), &keys_across);
      pieces.Take(Tensors::SizeOfPanels(a.value_size, kBlock), &values_across);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.key_size), &query_panels);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.value_size), &grad_panels);
      pieces.Take(Tensors::SizeOfPanels(kBlock, a.key_size), &key_panels);
      pieces.Take(Tensors::SizeOfRows(kBlock), &packed);
      for (float** tile : {&scores, &slopes}) pieces.Take(In::kTile, tile);
      pieces.Take(Queries(a, task) * key_row, &grad_query);
      pieces.Take(kBlock * key_row, &grad_key);
      pieces.Take(kBlock * RoundUp(a.value_size, kWidth), &grad_value);
      pieces.Take(Queries(a, task), &means);
    }

    // In all heads.
    static std::int64_t Queries(const Attention& a, const AttentionGradientTask& task) {
      return a.heads / a.key_heads * QueriesOfHead(task);
    }
    // With the rows that a product may write beyond the last.
    static std::int64_t QueriesOfHead(const AttentionGradientTask& task) {
      return RoundUp(task.queries.count, Tensors::kRowMultiple);
    }
  };

 public:
  static std::size_t WorkspaceBytes(const Attention& a,
                                    const AttentionGradientTask& task) {
    Pieces pieces(nullptr);
    Workspace workspace(a, task, pieces);
    return pieces.bytes();
  }

  static void Compute(const Attention& a, const AttentionGradient& gradient,
                      const AttentionGradientTask& task, void* memory) {
    [[maybe_unused]] typename Tensors::Scope scope;
    Pieces pieces(memory);
    const Workspace workspace(a, task, pieces);
    const Gradient one = {a, gradient, task, workspace};
    one.ComputeMeans();
    const std::int64_t end = task.keys.first + task.keys.count;
    if (task.computes_query) {
      const std::int64_t row = RoundUp(a.key_size, kWidth);
      std::fill_n(workspace.grad_query, Workspace::Queries(a, task) * row, 0.0f);
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
    const Workspace& workspace;

    std::int64_t group() const { return a.heads / a.key_heads; }
    std::int64_t key_row() const { return RoundUp(a.key_size, kWidth); }
    std::int64_t value_row() const { return RoundUp(a.value_size, kWidth); }

    // A tensor of the shape of the result.
    MatrixView ResultLike(const void* tensor, std::int64_t head,
                          std::int64_t first) const {
      return In::HeadOf(tensor, a.queries, a.heads, a.value_size, task.batch, head, first);
    }

    const float* LogSumExps(std::int64_t head, std::int64_t first) const {
      return gradient.log_sum_exp + (task.batch * a.heads + head) * a.queries + first;
    }

    // Calls body(head, queries, at) for blocks of the queries of each head; the first
    // query of a block is the at-th of the workspace.
    template <class Body>
    void ForQueries(const Body& body) const {
      const std::int64_t end = task.queries.first + task.queries.count;
      for (std::int64_t g = 0; g < group(); ++g) {
        for (std::int64_t query = task.queries.first; query < end; query += kBlock) {
          body(task.key_head * group() + g, Span{query, std::min(kBlock, end - query)},
               g * Workspace::QueriesOfHead(task) + query - task.queries.first);
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
      const MatrixView key = In::Key(a, task.batch, task.key_head, keys.first);
      const MatrixView value = In::Value(a, task.batch, task.key_head, keys.first);
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
      return In::Has(LogSumExps(head, queries.first), queries.count, kSeesNoKey);
    }

    // scores = d * p, and slopes = g.
    void ComputeScores(std::int64_t head, Span queries, Span keys,
                       std::int64_t at) const {
      Tensors::template PackRows<Stored>(In::Query(a, task.batch, head, queries.first),
                                         queries.count, a.key_size, workspace.queries);
      Tensors::template PackRows<Stored>(ResultLike(gradient.grad, head, queries.first),
                                         queries.count, a.value_size, workspace.grads);
      Tensors::Multiply(workspace.queries, queries.count, workspace.keys_across,
                        a.key_size, keys.count, /*accumulate=*/false, workspace.scores,
                        kBlockStride);
      Tensors::Multiply(workspace.grads, queries.count, workspace.values_across,
                        a.value_size, keys.count, /*accumulate=*/false, workspace.slopes,
                        kBlockStride);
      a.dropout > 0
          ? DifferentiateScores<typename Row::DropRow>(head, queries, keys, at)
          : DifferentiateScores<typename Row::KeepRow>(head, queries, keys, at);
    }

    template <class Drops>
    void DifferentiateScores(std::int64_t head, Span queries, Span keys,
                             std::int64_t at) const {
      const float* log_sum_exp = LogSumExps(head, queries.first);
      for (std::int64_t r = 0; r < queries.count; ++r) {
        const std::int64_t query = queries.first + r;
        const MaskRow mask(a, task.batch, head, query, keys.first, keys.count);
        const Drops drops(a, task.batch, head, query, keys.first);
        Row::Gradients(workspace.scores + r * kBlockStride,
                       workspace.slopes + r * kBlockStride, keys.count, a.scale, mask,
                       log_sum_exp[r], workspace.means[at + r], a.keys, drops);
      }
    }

    void AddToGradQuery(Span queries, Span keys, std::int64_t at) const {
      const MatrixView slopes = {workspace.slopes, DataType::kFloat, kBlockStride, 1};
      AddProduct(slopes, queries.count, keys.count, workspace.key_panels, a.key_size,
                 workspace.grad_query + at * key_row());
    }

    void AddToGradKeyAndValue(std::int64_t head, Span queries, Span keys) const {
      const MatrixView query = In::Query(a, task.batch, head, queries.first);
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
      if constexpr (!In::kPairs) {
        // It is packed already where its rows are those of A.
        if (tile.column == 1) return static_cast<const Packed*>(tile.data);
      }
      Tensors::template PackRows<FromTile>(tile, rows, depth, workspace.packed);
      return workspace.packed;
    }

    void WriteGradKeyAndValue(Span keys) const {
      const auto like_keys = [&](void* tensor, std::int64_t size) {
        return In::HeadOf(tensor, a.keys, a.key_heads, size, task.batch, task.key_head,
                          keys.first);
      };
      In::RoundRows(workspace.grad_key, key_row(), keys.count, a.key_size, a.scale,
                    like_keys(gradient.grad_key, a.key_size));
      In::RoundRows(workspace.grad_value, value_row(), keys.count, a.value_size, 1,
                    like_keys(gradient.grad_value, a.value_size));
    }

    void WriteGradQuery() const {
      ForQueries([&](std::int64_t head, Span queries, std::int64_t at) {
        In::RoundRows(workspace.grad_query + at * key_row(), key_row(), queries.count,
                      a.key_size, a.scale,
                      In::HeadOf(gradient.grad_query, a.queries, a.heads, a.key_size,
                                 task.batch, head, queries.first));
      });
    }
  };
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_GRADIENT_SIMD_H_
