// The driver of the attention on a CPU: cuts it into tasks and runs the kernel of the
// instruction set (cpu/attention/attention_kernel_simd.h) on each, in parallel.
//
//   result = round(softmax(scale * query * key^T) * value)
//
// Tensors are [batch, length, heads, size], packed; keras_mp/attention.h has the rest.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#include "keras_mp/attention_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "common/ceil_div.h"
#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/workspace.h"

namespace keras_mp {
namespace {

Status Check(const Attention& a, Isa isa) {
  for (std::int64_t size : {a.batch, a.queries, a.keys, a.heads, a.key_heads, a.key_size,
                            a.value_size}) {
    if (size < 0) return {StatusCode::kInvalidArgument, "a size must not be negative"};
  }
  if (a.key_heads == 0 ? a.heads != 0 : a.heads % a.key_heads != 0) {
    return {StatusCode::kInvalidArgument,
            "the number of heads must be a multiple of that of the keys' heads"};
  }
  if (a.mask != nullptr && a.mask_strides[3] != 0 && a.mask_strides[3] != 1) {
    return {StatusCode::kInvalidArgument, "the mask must be packed along the keys"};
  }
  if (!(a.dropout >= 0 && a.dropout < 1)) {  // a NaN is not
    return {StatusCode::kInvalidArgument, "the dropout must be 0 or more, and below 1"};
  }
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// Whether the work is worth waking threads: a thread's share should take tens of
// microseconds.
bool IsForThreads(const Attention& a) {
  constexpr double kWorkOfAThread = 2e6;
  const double scores = 1.0 * a.batch * a.heads * a.queries * a.keys;
  return scores * (a.key_size + a.value_size) >= 2 * kWorkOfAThread;
}

// Calls compute(task, workspace) for each task in [0, count), with at least bytes(task)
// of scratch memory.
template <class Bytes, class Compute>
Status ForTasks(const Parallel& parallel, std::int64_t count, const Bytes& bytes,
                const Compute& compute) {
  struct Job {
    const Bytes& bytes;
    const Compute& compute;
    std::atomic<bool> out_of_memory{false};
  } job{bytes, compute};
  const auto body = [](void* context, std::int64_t task) {
    Job& job = *static_cast<Job*>(context);
    void* workspace = ThreadWorkspace(job.bytes(task));
    if (workspace == nullptr) {
      job.out_of_memory = true;
      return;
    }
    job.compute(task, workspace);
  };
  if (parallel.run == nullptr || parallel.threads == 1) {
    for (std::int64_t task = 0; task < count; ++task) body(&job, task);
  } else {
    parallel.run(parallel.state, count, &job, body);
  }
  if (job.out_of_memory) {
    return {StatusCode::kOutOfMemory, "no memory for the blocks of an attention"};
  }
  return {};
}

// Consecutive parts of the queries or keys.
struct Parts {
  std::int64_t size, part, count;

  Parts(std::int64_t size, std::int64_t part)
      : size(size), part(part), count(CeilDiv(size, part)) {}

  Span operator[](std::int64_t i) const {
    return {i * part, std::min(part, size - i * part)};
  }
};

// Parts of equal size, up to kAttentionBlock.
Parts EqualParts(std::int64_t size) {
  const std::int64_t count = std::max<std::int64_t>(1, CeilDiv(size, kAttentionBlock));
  return {size, std::max<std::int64_t>(1, CeilDiv(size, count))};
}

Parallel ThreadsFor(const Attention& a, const Parallel& parallel) {
  return IsForThreads(a) ? parallel : Parallel{};
}

}  // namespace

Status AttentionCpu(const Attention& a, const AttentionResult& result,
                    const Parallel& parallel, Isa isa) {
  const Status status = Check(a, isa);
  if (!status.ok() || IsEmpty({a.batch, a.queries, a.heads})) return status;
  const AttentionKernel& kernel = *KernelsOf(isa)->attention;
  const Parts queries = EqualParts(a.queries);
  const auto bytes = [&](std::int64_t) { return kernel.workspace_bytes(a); };
  return ForTasks(
      ThreadsFor(a, parallel), a.batch * a.heads * queries.count, bytes,
      [&](std::int64_t i, void* workspace) {
        // With a causal limit, the last queries see the most keys: they come first.
        const std::int64_t part = queries.count - 1 - i % queries.count;
        const std::int64_t head = i / queries.count;
        const AttentionTask task = {head / a.heads, head % a.heads, queries[part]};
        kernel.compute(a, result, task, workspace);
      });
}

Status AttentionGradientCpu(const Attention& a, const AttentionGradient& gradient,
                            const Parallel& given, Isa isa) {
  const Status status = Check(a, isa);
  if (!status.ok() || IsEmpty({a.batch, a.key_heads})) return status;
  const AttentionKernel& kernel = *KernelsOf(isa)->attention;
  const Parallel parallel = ThreadsFor(a, given);
  const std::int64_t heads = a.batch * a.key_heads;
  const Span all_queries = {0, a.queries}, all_keys = {0, a.keys};
  const auto run = [&](std::int64_t parts, const auto& task_of) {
    return ForTasks(
        parallel, heads * parts,
        [&](std::int64_t i) { return kernel.gradient_workspace_bytes(a, task_of(i)); },
        [&](std::int64_t i, void* workspace) {
          kernel.compute_gradient(a, gradient, task_of(i), workspace);
        });
  };

  // A task for each head of the keys computes each score once. Where there are too few of
  // them, or each would need much memory, the gradient of the queries takes tasks of its
  // own, which compute the scores again.
  const AttentionGradientTask whole = {0, 0, all_queries, all_keys, true, true};
  constexpr std::size_t kMostBytes = std::size_t{32} << 20;
  const bool is_for_all = heads >= parallel.threads &&
                          kernel.gradient_workspace_bytes(a, whole) <= kMostBytes;
  if (is_for_all) {
    return run(1, [&](std::int64_t i) {
      return AttentionGradientTask{
          i / a.key_heads, i % a.key_heads, all_queries, all_keys, true, true};
    });
  }
  // The same blocks as those that a task for all of them meets.
  const Parts queries(a.queries, kAttentionBlock), keys(a.keys, kAttentionBlock);
  const Status of_queries = run(queries.count, [&](std::int64_t i) {
    const std::int64_t head = i / queries.count;
    return AttentionGradientTask{head / a.key_heads, head % a.key_heads,
                                 queries[i % queries.count], all_keys, true, false};
  });
  if (!of_queries.ok()) return of_queries;
  return run(keys.count, [&](std::int64_t i) {
    const std::int64_t head = i / keys.count;
    return AttentionGradientTask{head / a.key_heads, head % a.key_heads, all_queries,
                                 keys[i % keys.count], false, true};
  });
}

}  // namespace keras_mp
