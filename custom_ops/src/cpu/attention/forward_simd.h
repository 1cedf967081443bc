// Attention for one instruction set: a template, as cpu/gemm/gemm_kernel_simd.h.
// keras_mp/attention.h has the formulas.
//
// Up to kAttentionBlock queries meet blocks of as many keys, one after the other. The
// result of the keys so far is kept for the largest score so far, and scaled down when a
// larger one comes.
//
// The scores take the steps of the GEMM for the format of the tensors, which may be dot
// products of bfloat16. The result takes them only where FP16 is two numbers of bfloat16;
// else its sums are of FP32 multiply-adds.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_FORWARD_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_FORWARD_SIMD_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/ceil_div.h"
#include "cpu/attention/attention_kernel.h"
#include "cpu/attention/head_tensors_simd.h"
#include "cpu/attention/scores_simd.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd, class Format>
class AttentionForward {
  using In = HeadTensors<Simd, Format>;
  using Tensors = typename In::Tensors;
  using Results = std::conditional_t<In::kInParts, Tensors, typename In::Floats>;
  using Stored = typename In::Stored;
  using Packed = typename In::Packed;
  using Pieces = typename In::Pieces;
  using Row = typename In::Row;
  using MaskRow = typename Row::MaskRow;
  static constexpr std::int64_t kBlock = In::kBlock, kWidth = In::kWidth;

  struct Workspace {
    Packed *queries, *keys, *weights;
    typename Results::Packed* values;
    float *scores, *result;

    Workspace(const Attention& a, Pieces& pieces) {
      pieces.Take(Tensors::SizeOfRows(a.key_size), &queries);
      pieces.Take(Tensors::SizeOfPanels(a.key_size, kBlock), &keys);
      if constexpr (In::kInParts) pieces.Take(Tensors::SizeOfRows(kBlock), &weights);
      pieces.Take(Results::SizeOfPanels(kBlock, a.value_size), &values);
      pieces.Take(In::kTile, &scores);
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
    a.dropout > 0 ? ComputeWith<typename Row::DropRow>(a, results, task, memory)
                  : ComputeWith<typename Row::KeepRow>(a, results, task, memory);
  }

 private:
  template <class Drops>
  static void ComputeWith(const Attention& a, const AttentionResult& results,
                          const AttentionTask& task, void* memory) {
    [[maybe_unused]] typename Tensors::Scope scope;
    Pieces pieces(memory);
    const Workspace workspace(a, pieces);
    const std::int64_t rows = task.queries.count, first = task.queries.first;
    const std::int64_t key_head = task.head / (a.heads / a.key_heads);
    const std::int64_t result_row = RoundUp(a.value_size, kWidth);
    float largest[kBlock], sum[kBlock];
    std::fill_n(largest, rows, kHiddenScore);
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(workspace.result, rows * result_row, 0.0f);
    Tensors::template PackRows<Stored>(In::Query(a, task.batch, task.head, first), rows,
                                       a.key_size, workspace.queries);
    for (std::int64_t key = 0; key < a.keys; key += kBlock) {
      // Beyond the causal limit only queries that see no key have anything to sum.
      const bool is_beyond = a.is_causal && key >= first + rows;
      if (is_beyond && !In::Has(largest, rows, kHiddenScore)) break;
      const std::int64_t columns = std::min(kBlock, a.keys - key);
      Tensors::template PackPanels<Stored>(
          In::Key(a, task.batch, key_head, key).Transposed(), a.key_size, columns,
          workspace.keys);
      Tensors::Multiply(workspace.queries, rows, workspace.keys, a.key_size, columns,
                        /*accumulate=*/false, workspace.scores, kBlockStride);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* scores = workspace.scores + r * kBlockStride;
        const MaskRow mask(a, task.batch, task.head, first + r, key, columns);
        const Drops drops(a, task.batch, task.head, first + r, key);
        const float before = largest[r];
        largest[r] = Row::ScaleAndMask(scores, columns, a.scale, mask, before);
        const float factor = largest[r] == before ? 1 : ExpOf(before - largest[r]);
        sum[r] = sum[r] * factor + Row::Exponentials(scores, columns, largest[r], drops);
        if (factor != 1) Scale(workspace.result + r * result_row, result_row, factor);
      }
      Results::template PackPanels<Stored>(In::Value(a, task.batch, key_head, key),
                                           columns, a.value_size, workspace.values);
      Results::Multiply(Weights(workspace, rows, columns), rows, workspace.values, columns,
                        a.value_size, /*accumulate=*/true, workspace.result, result_row);
    }
    const MatrixView to = In::HeadOf(results.result, a.queries, a.heads, a.value_size,
                                     task.batch, task.head, first);
    float* log_sum_exp =
        results.log_sum_exp + (task.batch * a.heads + task.head) * a.queries + first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float inverse = a.keys == 0 ? 0 : 1 / sum[r];
      In::RoundRows(workspace.result + r * result_row, result_row, 1, a.value_size,
                    inverse, to.At(r, 0));
      log_sum_exp[r] = LogSumExp(largest[r], sum[r], a.keys);
    }
  }

  // The exponentials as an operand of the result.
  static const typename Results::Packed* Weights(const Workspace& workspace,
                                                 std::int64_t rows,
                                                 std::int64_t columns) {
    if constexpr (In::kInParts) {
      const MatrixView scores = {workspace.scores, DataType::kFloat, kBlockStride, 1};
      Tensors::template PackRows<typename In::FromTile>(scores, rows, columns,
                                                        workspace.weights);
      return workspace.weights;
    } else {
      return workspace.scores;
    }
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
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_FORWARD_SIMD_H_
