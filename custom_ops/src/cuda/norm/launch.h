// The functions of row_norm_cuda.h, softmax_cuda.h and sum_cuda.h as sequences of kernel
// launches. A `Launcher` makes them: on a stream, or in tests on the host. It has
//
//   Run(kernel, blocks, shared_bytes, arguments)   launches blocks of kBlock threads
//
// which returns whether the launch succeeded, and does nothing after one that failed.

#ifndef KERAS_MP_SRC_CUDA_NORM_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_NORM_LAUNCH_H_

#include <algorithm>
#include <cstddef>

#include "common/ceil_div.h"
#include "cuda/norm/channel_sums.cuh"
#include "cuda/norm/row_norm.cuh"
#include "cuda/norm/softmax.cuh"
#include "keras_mp/sum.h"

namespace keras_mp::cuda {

// Numbers of a type, as a template argument.
template <int kNumber>
struct Constant {
  static constexpr int value = kNumber;
};

// Calls work(format) with the format of a 16-bit type.
template <class Work>
auto WithFormat(DataType type, const Work& work) {
  return type == DataType::kHalf ? work(Half{}) : work(Bfloat16{});
}

constexpr int kRowSharedBytes = kBlockWarps * static_cast<int>(sizeof(float));

// Launches choose(format, team, is_held), a kernel for the rows of a problem: a team of a
// warp or a block for each row, and whether the registers of the team hold it.
template <class Problem, class Arguments, class Choose, class Launcher>
void LaunchRows(const Problem& problem, const Arguments& arguments, const Choose& choose,
                Launcher& launcher) {
  if (problem.size == 0) return;
  void (*kernel)(Arguments) = nullptr;
  Index blocks = problem.rows;
  WithFormat(problem.type, [&](auto format) {
    if (problem.size <= kHeld * kWarp) {
      kernel = choose(format, Constant<kWarp>{}, Constant<1>{});
      blocks = CeilDiv(problem.rows, Index{kBlockWarps});
    } else if (problem.size <= kHeld * kBlock) {
      kernel = choose(format, Constant<kBlock>{}, Constant<1>{});
    } else {
      kernel = choose(format, Constant<kBlock>{}, Constant<0>{});
    }
  });
  launcher.Run(kernel, blocks, kRowSharedBytes, arguments);
}

// Parts of the rows for about 1024 blocks, which fill every GPU of today. They depend on
// the sizes alone, so that the sums have the same order on each GPU.
inline ColumnParts PartsOf(Index slices, Index rows, Index columns) {
  constexpr Index kBlocks = 1024, kFewestPartRows = 8 * kBlockWarps;
  const Index blocks = std::max(Index{1}, slices * CeilDiv(columns, Index{kTileColumns}));
  const Index wanted = CeilDiv(kBlocks, blocks);
  const Index part_rows =
      std::clamp(RoundUp(CeilDiv(rows, wanted), Index{kBlockWarps}), kFewestPartRows,
                 Index{kMostPartRows});
  return {slices, rows, columns, CeilDiv(rows, part_rows), part_rows};
}

inline Index PartialsOf(const ColumnParts& parts) {
  return parts.slices * parts.parts * parts.columns;
}

inline Index BlocksOf(const ColumnParts& parts) {
  return parts.slices * parts.parts * CeilDiv(parts.columns, Index{kTileColumns});
}

// The sums of a term over the rows; FinishKernel adds the partials of each.
template <class Term, class Scales, class Launcher>
void LaunchColumnSums(DataType type, const ColumnSumsArguments<Scales>& arguments,
                      Launcher& launcher) {
  const auto kernel = WithFormat(type, [](auto format) {
    return ColumnSumsKernel<decltype(format), Term, Scales>;
  });
  launcher.Run(kernel, BlocksOf(arguments.parts), kColumnSumsSharedBytes, arguments);
}

template <class Term, class Scales, class Launcher>
void LaunchRowSums(DataType type, const RowSumsArguments<Scales>& arguments,
                   Launcher& launcher) {
  const bool is_short = arguments.size <= kHeld * kWarp;
  const auto kernel = WithFormat(type, [&](auto format) {
    using Format = decltype(format);
    return is_short ? RowSumsKernel<Format, Term, Scales, kWarp>
                    : RowSumsKernel<Format, Term, Scales, kBlock>;
  });
  const Index teams = arguments.rows * arguments.parts;
  const Index blocks = is_short ? CeilDiv(teams, Index{kBlockWarps}) : teams;
  launcher.Run(kernel, blocks, kRowSharedBytes, arguments);
}

// totals = the sums of the parts / divisor
template <class Launcher>
void LaunchFinish(const FinishArguments& arguments, Launcher& launcher) {
  launcher.Run(FinishKernel,
               arguments.slices * CeilDiv(arguments.columns, Index{kFinishColumns}),
               kFinishSharedBytes, arguments);
}

template <class Launcher>
void LaunchRowNorm(const RowNorm& norm, Launcher& launcher) {
  LaunchRows(
      norm, norm,
      [](auto format, auto team, auto is_held) {
        return RowNormKernel<decltype(format), team.value, is_held.value>;
      },
      launcher);
}

// The sums over the rows in the gradient of a row normalization.
inline ColumnParts PartsOf(const RowNormGradient& gradient) {
  return PartsOf(1, gradient.rows, gradient.size);
}

inline bool HasColumnSums(const RowNormGradient& gradient) {
  return gradient.size > 0 && (gradient.grad_gamma || gradient.grad_beta);
}

// The scales of the rows, and the partials of both sums.
inline std::size_t WorkspaceFloats(const RowNormGradient& gradient) {
  if (!HasColumnSums(gradient)) return 0;
  return static_cast<std::size_t>(2 * gradient.rows + 2 * PartialsOf(PartsOf(gradient)));
}

template <class Launcher>
void LaunchRowNormGradient(const RowNormGradient& gradient, float* workspace,
                           Launcher& launcher) {
  const bool has_sums = HasColumnSums(gradient);
  float* const scales = has_sums ? workspace : nullptr;
  LaunchRows(
      gradient, RowNormGradientArguments{gradient, scales},
      [](auto format, auto team, auto is_held) {
        return RowNormGradientKernel<decltype(format), team.value, is_held.value>;
      },
      launcher);
  if (!has_sums) return;
  const ColumnParts parts = PartsOf(gradient);
  float* const partials = workspace + 2 * gradient.rows;
  LaunchColumnSums<GradientTerm>(
      gradient.type,
      ColumnSumsArguments<RowScales>{
          parts, {gradient.x, gradient.grad_y}, {scales}, partials},
      launcher);
  float* const results[] = {gradient.grad_beta, gradient.grad_gamma};
  for (int s = 0; s < 2; ++s) {
    if (results[s] == nullptr) continue;
    LaunchFinish({1, parts.parts, parts.columns, partials + s * PartialsOf(parts), 1,
                  results[s]},
                 launcher);
  }
}

template <class Launcher>
void LaunchSoftmax(const Softmax& softmax, Launcher& launcher) {
  LaunchRows(
      softmax, softmax,
      [&](auto format, auto team, auto is_held) {
        using Format = decltype(format);
        return softmax.is_x_float
                   ? SoftmaxKernel<Float, Format, team.value, is_held.value>
                   : SoftmaxKernel<Format, Format, team.value, is_held.value>;
      },
      launcher);
}

template <class Launcher>
void LaunchSoftmaxGradient(const SoftmaxGradient& gradient, Launcher& launcher) {
  LaunchRows(
      gradient, gradient,
      [](auto format, auto team, auto is_held) {
        return SoftmaxGradientKernel<decltype(format), team.value, is_held.value>;
      },
      launcher);
}

template <class Launcher>
void LaunchFloatSoftmaxGradient(const FloatSoftmaxGradient& gradient,
                                Launcher& launcher) {
  LaunchRows(
      gradient, gradient,
      [](auto format, auto team, auto is_held) {
        return FloatSoftmaxGradientKernel<decltype(format), team.value, is_held.value>;
      },
      launcher);
}

// Contiguous elements are the rows of a matrix; else a row of `inner` columns has one
// element of each sum.
inline bool IsContiguous(const Sum& sum) { return sum.inner == 1 && sum.count != 1; }

inline Index RowPartsOf(Index size) { return CeilDiv(size, Index{kPartSize}); }

inline std::size_t WorkspaceFloats(const Sum& sum) {
  if (sum.outer == 0 || sum.inner == 0) return 0;
  return static_cast<std::size_t>(
      IsContiguous(sum) ? sum.outer * RowPartsOf(sum.count)
                        : PartialsOf(PartsOf(sum.outer, sum.count, sum.inner)));
}

template <class Launcher>
void LaunchSum(const Sum& sum, float* workspace, Launcher& launcher) {
  if (sum.outer == 0 || sum.inner == 0) return;
  if (IsContiguous(sum)) {
    const Index parts = RowPartsOf(sum.count);
    LaunchRowSums<PlainTerm>(
        sum.type,
        RowSumsArguments<NoScales>{
            sum.outer, sum.outer, sum.count, parts, {sum.x, nullptr}, {}, workspace},
        launcher);
    LaunchFinish({1, parts, sum.outer, workspace, 1, sum.y}, launcher);
    return;
  }
  const ColumnParts parts = PartsOf(sum.outer, sum.count, sum.inner);
  LaunchColumnSums<PlainTerm>(
      sum.type, ColumnSumsArguments<NoScales>{parts, {sum.x, nullptr}, {}, workspace},
      launcher);
  LaunchFinish({sum.outer, parts.parts, sum.inner, workspace, 1, sum.y}, launcher);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_LAUNCH_H_
