// The functions of update_cuda.h as calls of kernels. `Launcher` makes them: on a stream,
// or in tests on the host. It has
//
//   Run(kernel, blocks, shared_bytes, arguments)   whether it could be put on the stream
//   Clear(pointer, bytes)                          likewise: sets bytes to 0
//
// of which the first that fails ends the call; the launcher knows why.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "cuda/update/kernels.cuh"
#include "cuda/update/tensor_list.h"

namespace keras_mp::cuda {

inline Index PiecesOf(const GradientCheck& check) {
  Index pieces = 0;
  for (std::int64_t i = 0; i < check.count; ++i) {
    pieces += PiecesOf(check.gradients[i].size);
  }
  return pieces;
}

// `to`: as for UnscaleGradientsCuda, or null. `squares`: [PiecesOf(check)] on the device,
// for a check that sums squares.
template <class Launcher>
void CallCheck(const GradientCheck& check, float* const* to, double* squares,
               Launcher& launcher) {
  if (check.count > 0 && !launcher.Clear(check.overflows, check.count * sizeof(bool))) {
    return;
  }
  const std::size_t shared_bytes = kThreads * sizeof(double);
  bool ok = true;
  Index done = 0;
  const auto entry = [&](std::int64_t i) -> CheckEntry {
    return {check.gradients[i], to ? to[i] : nullptr, check.overflows + i};
  };
  ForTables<CheckEntry>(check.count, entry, [&](const auto& table, int pieces) {
    double* const here = check.squares ? squares + done : nullptr;
    done += pieces;
    return ok = launcher.Run(CheckKernel, pieces, here ? shared_bytes : 0,
                             CheckArguments{table, check.scale, here});
  });
  if (ok && check.squares) {
    launcher.Run(SumKernel, 1, shared_bytes, SumArguments{squares, done, check.squares});
  }
}

template <class Launcher>
void CallFollow(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                Launcher& launcher) {
  const auto entry = [&](std::int64_t i) -> PairEntry { return {pairs[i], nullptr}; };
  ForTables<PairEntry>(count, entry, [&](const auto& table, int pieces) {
    return launcher.Run(FollowKernel, pieces, 0, PairsArguments{table, rounding});
  });
}

template <class Launcher>
void CallCast(const MasterPair* pairs, std::int64_t count, const float* const* uniforms,
              Launcher& launcher) {
  const auto entry = [&](std::int64_t i) -> PairEntry {
    return {pairs[i], uniforms ? uniforms[i] : nullptr};
  };
  const auto rounding = uniforms ? Rounding::kStochastic : Rounding::kNearest;
  ForTables<PairEntry>(count, entry, [&](const auto& table, int pieces) {
    return launcher.Run(CastKernel, pieces, 0, PairsArguments{table, rounding});
  });
}

template <class Launcher>
void CallUpdate(const Update& update, Launcher& launcher) {
  void (*kernel)(UpdateArguments) = nullptr;
  WithRule(update.rule, [&](auto rule) { kernel = UpdateKernel<rule.value>; });
  const auto entry = [&](std::int64_t i) { return update.parameters[i]; };
  ForTables<Parameter>(update.count, entry, [&](const auto& table, int pieces) {
    return launcher.Run(
        kernel, pieces, 0,
        UpdateArguments{table, update.rounding, update.numbers, update.finite});
  });
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_LAUNCH_H_
