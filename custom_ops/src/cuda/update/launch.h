// The functions of update_cuda.h as sequences of kernel launches. A `Launcher` makes
// them: on a stream, or in tests on the host. It has
//
//   Run(kernel, blocks, shared_bytes, arguments)   launches blocks of kThreads threads
//   Clear(pointer, bytes)                          sets bytes to 0
//
// Both return whether the launch succeeded. The first failure ends a function; the
// launcher keeps the error.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/update_forms.h"
#include "cuda/update/compressed_kernel.cuh"
#include "cuda/update/kernels.cuh"
#include "cuda/update/tensor_list.h"

namespace keras_mp::cuda {

inline Index ChunksOf(const GradientCheck& check) {
  Index chunks = 0;
  for (std::int64_t i = 0; i < check.count; ++i) {
    chunks += ChunksOf(check.gradients[i].size);
  }
  return chunks;
}

// `to`: as for UnscaleGradientsCuda, or null. `sums`: [ChunksOf(check)] on the device,
// for the sums of squares of the chunks; not read where check.sum_of_squares is null.
template <class Launcher>
void LaunchCheck(const GradientCheck& check, float* const* to, double* sums,
                 Launcher& launcher) {
  if (check.count > 0 && !launcher.Clear(check.largest, check.count * sizeof(float))) {
    return;
  }
  const std::size_t shared_bytes = kThreads * sizeof(double);
  bool ok = true;
  Index done = 0;
  const auto entry = [&](std::int64_t i) -> CheckEntry {
    return {check.gradients[i], to ? to[i] : nullptr, check.largest + i};
  };
  ForTensorLists<CheckEntry>(check.count, entry, [&](const auto& list, int chunks) {
    double* const sums_of_list = check.sum_of_squares ? sums + done : nullptr;
    done += chunks;
    return ok = launcher.Run(CheckKernel, chunks, shared_bytes,
                             CheckArguments{list, check.scale, sums_of_list});
  });
  if (ok && check.sum_of_squares) {
    launcher.Run(SumKernel, 1, shared_bytes,
                 SumArguments{sums, done, check.sum_of_squares});
  }
}

template <class Launcher>
void LaunchSyncMasters(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                       Launcher& launcher) {
  const auto entry = [&](std::int64_t i) -> PairEntry { return {pairs[i], nullptr}; };
  ForTensorLists<PairEntry>(count, entry, [&](const auto& list, int chunks) {
    return launcher.Run(SyncMastersKernel, chunks, 0, PairsArguments{list, rounding});
  });
}

template <class Launcher>
void LaunchCast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms,
                Launcher& launcher) {
  const auto entry = [&](std::int64_t i) -> PairEntry {
    return {pairs[i], uniforms ? uniforms[i] : nullptr};
  };
  const auto rounding = uniforms ? Rounding::kStochastic : Rounding::kNearest;
  ForTensorLists<PairEntry>(count, entry, [&](const auto& list, int chunks) {
    return launcher.Run(CastKernel, chunks, 0, PairsArguments{list, rounding});
  });
}

template <class Launcher>
void LaunchUpdate(const Update& update, Launcher& launcher) {
  const auto launch = [&](const auto& kernel_of_rule, const auto& entry) {
    using Entry = decltype(entry(0));
    using Arguments = UpdateArguments<Entry>;
    void (*kernel)(Arguments) = nullptr;
    WithRule(update.rule, [&](auto rule) {
      if constexpr (!NeedsNorms(rule.value)) kernel = kernel_of_rule(rule);
    });
    ForTensorLists<Entry>(update.count, entry, [&](const auto& list, int chunks) {
      return launcher.Run(
          kernel, chunks, 0,
          Arguments{list, update.rounding, update.hyperparameters, update.finite});
    });
  };
  const Parameter *first = update.parameters, *end = first + update.count;
  if (std::any_of(first, end, IsCompressed)) {
    launch([](auto rule) { return CompressedUpdateKernel<rule.value>; },
           [&](std::int64_t i) { return update.parameters[i]; });
  } else {
    launch([](auto rule) { return UpdateKernel<rule.value>; },
           [&](std::int64_t i) { return AsEntry(update.parameters[i]); });
  }
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_
