// The update step of keras_mp/update.h on a CPU: lists of contiguous arrays are cut into
// chunks, which are distributed over threads, and chunks into blocks, on which the
// functions of cpu/update/update_kernel.h compute the formulas. Nothing is expanded but a
// block at a time.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#include "keras_mp/update_cpu.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "common/half.h"
#include "common/update_forms.h"
#include "cpu/runtime/parallel.h"
#include "cpu/update/chunks.h"
#include "cpu/update/norms.h"
#include "cpu/update/update_kernel.h"
#include "cpu/update/update_of_blocks.h"

namespace keras_mp {
namespace {

// From so many un-scaled gradients on they are written past the caches, which could not
// hold them until they are read: 32 MiB.
constexpr std::int64_t kStreamedSize = 1 << 23;

Status CheckSizes(std::int64_t count, Isa isa) {
  if (count < 0) return {StatusCode::kInvalidArgument, "a count must not be negative"};
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// Un-scales array i into to(i), or where that is null block by block into a buffer.
template <class To>
Status Check(const GradientCheck& check, const To& to, const Parallel& parallel,
             Isa isa) {
  const Status status = CheckSizes(check.count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto size_of = [&](std::int64_t i) { return check.gradients[i].size; };
  const auto chunks = Cut(check.count, size_of);
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < check.count; ++i) elements += size_of(i);
  const bool streams = elements >= kStreamedSize;
  std::vector<std::int32_t> largest(chunks.size());
  std::vector<double> sums(check.sum_of_squares ? chunks.size() : 0);
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const Chunk& chunk = chunks[i];
    const Gradient& gradient = check.gradients[chunk.array];
    float buffer[kUpdateBlock];
    std::int32_t most = 0;
    ForBlocks(chunk, [&](std::int64_t at, std::int64_t n) {
      float* given = Offset(to(chunk.array), at);
      float* unscaled = given && !streams ? given : buffer;
      most = std::max(most, kernel.unscale(At(gradient, at), gradient.type, n,
                                           *check.scale, unscaled));
      if (check.sum_of_squares) sums[i] += kernel.sum_of_squares(unscaled, n);
      if (given && streams) kernel.stream(unscaled, n, given);
    });
    if (streams) std::atomic_thread_fence(std::memory_order_seq_cst);
    largest[i] = most;
  });
  std::vector<std::int32_t> of_array(check.count);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    std::int32_t& most = of_array[chunks[i].array];
    most = std::max(most, largest[i]);
  }
  for (std::int64_t i = 0; i < check.count; ++i) {
    check.largest[i] = FromBits(static_cast<std::uint32_t>(of_array[i]));
  }
  if (check.sum_of_squares) {
    *check.sum_of_squares =
        static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0));
  }
  return {};
}

// Calls work(kernel, chunk) for each chunk of the pairs.
template <class Work>
Status ForPairs(const MasterPair* pairs, std::int64_t count, const Parallel& parallel,
                Isa isa, const Work& work) {
  const Status status = CheckSizes(count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto chunks = Cut(count, [&](std::int64_t i) { return pairs[i].size; });
  ForChunks(parallel, chunks, [&](std::int64_t i) { work(kernel, chunks[i]); });
  return {};
}

}  // namespace

const UpdateKernel* UpdateKernelOf(Isa isa) {
  switch (isa) {
    case Isa::kAmxFp16:
    case Isa::kAmxBf16:
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return Avx512UpdateKernel();
    case Isa::kAvx2:
      return Avx2UpdateKernel();
    case Isa::kNeon:
      return NeonUpdateKernel();
    case Isa::kPortable:
      return PortableUpdateKernel();
    case Isa::kUnknown:
      break;
  }
  return nullptr;
}

Status CheckGradientsCpu(const GradientCheck& check, const Parallel& parallel, Isa isa) {
  const auto nowhere = [](std::int64_t) -> float* { return nullptr; };
  return Check(check, nowhere, parallel, isa);
}

Status UnscaleGradientsCpu(const GradientCheck& check, float* const* to,
                           const Parallel& parallel, Isa isa) {
  return Check(check, [to](std::int64_t i) { return to[i]; }, parallel, isa);
}

Status SyncMastersFromWeightsCpu(const MasterPair* pairs, std::int64_t count,
                                 Rounding rounding, const Parallel& parallel, Isa isa) {
  const auto work = [&](const UpdateKernel& kernel, const Chunk& chunk) {
    const MasterPair& pair = pairs[chunk.array];
    kernel.sync_masters(pair.master + chunk.begin, pair.weight + chunk.begin, pair.type,
                        chunk.end - chunk.begin, rounding);
  };
  return ForPairs(pairs, count, parallel, isa, work);
}

Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel, Isa isa) {
  const auto work = [&](const UpdateKernel& kernel, const Chunk& chunk) {
    const MasterPair& pair = pairs[chunk.array];
    kernel.cast(pair.master + chunk.begin, pair.weight + chunk.begin, pair.type,
                chunk.end - chunk.begin,
                uniforms ? uniforms[chunk.array] + chunk.begin : nullptr);
  };
  return ForPairs(pairs, count, parallel, isa, work);
}

Status UpdateCpu(const Update& update, const Parallel& parallel, Isa isa) {
  const Status status = CheckSizes(update.count, isa);
  if (!status.ok() || (update.finite && !*update.finite)) return status;
  const Status forms = CheckForms(update);
  if (!forms.ok()) return forms;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  if (update.rule == UpdateRule::kLamb) {
    UpdateLamb(update, parallel, kernel);
    return {};
  }
  if (update.rule == UpdateRule::kAdafactor) {
    UpdateAdafactor(update, parallel, kernel);
    return {};
  }
  auto chunks = Cut(
      update.count, [&](std::int64_t i) { return update.parameters[i].gradient.size; });
  // The last chunks first: the check has left them in the cache.
  std::reverse(chunks.begin(), chunks.end());
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const UpdateOfBlocks of_blocks(update, update.parameters[chunks[i].array], kernel);
    ForBlocks(chunks[i], of_blocks);
  });
  return {};
}

}  // namespace keras_mp
