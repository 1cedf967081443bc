// The functions of batch_norm_cuda.h as sequences of kernel launches, with a Launcher as
// in cuda/norm/launch.h. Statistics take two passes: first the means, then the squared
// distances from them.

#ifndef KERAS_MP_SRC_CUDA_NORM_BATCH_NORM_LAUNCH_H_
#define KERAS_MP_SRC_CUDA_NORM_BATCH_NORM_LAUNCH_H_

#include <cstddef>

#include "cuda/norm/channel_map.cuh"
#include "cuda/norm/launch.h"
#include "keras_mp/batch_norm.h"

namespace keras_mp::cuda {

// A tensor [outer, channels, inner]: the channels are in columns where inner is 1, else in
// rows.
class ChannelLaunches {
 public:
  ChannelLaunches(const ChannelShape& shape, DataType type)
      : shape_(shape),
        type_(type),
        columns_(PartsOf(1, shape.outer, shape.channels)),
        row_parts_(RowPartsOf(shape.inner)) {}

  bool has_columns() const { return shape_.inner == 1; }
  Index count() const { return shape_.outer * shape_.inner; }

  // Of one sum.
  Index partials() const {
    return has_columns() ? PartialsOf(columns_)
                         : shape_.outer * row_parts_ * shape_.channels;
  }

  // totals[s] = the s-th sum of the term over each channel / divisor
  template <class Term, class Scales, class Launcher>
  void Sum(const void* x, const void* other, const Scales& scales, double divisor,
           float* const (&totals)[Term::kSums], float* workspace,
           Launcher& launcher) const {
    if (has_columns()) {
      LaunchColumnSums<Term>(
          type_, ColumnSumsArguments<Scales>{columns_, {x, other}, scales, workspace},
          launcher);
    } else {
      LaunchRowSums<Term>(
          type_,
          RowSumsArguments<Scales>{shape_.outer * shape_.channels, shape_.channels,
                                   shape_.inner, row_parts_, {x, other}, scales,
                                   workspace},
          launcher);
    }
    const Index parts = has_columns() ? columns_.parts : shape_.outer * row_parts_;
    for (int s = 0; s < Term::kSums; ++s) {
      LaunchFinish({1, parts, shape_.channels, workspace + s * partials(), divisor,
                    totals[s]},
                   launcher);
    }
  }

  template <class Map, class Launcher>
  void Compute(const void* x, const void* other, const Map& map, void* to,
               Launcher& launcher) const {
    if (has_columns()) {
      const auto kernel = WithFormat(type_, [](auto format) {
        return ColumnMapKernel<decltype(format), Map>;
      });
      launcher.Run(kernel, BlocksOf(columns_), 0,
                   ColumnMapArguments<Map>{columns_, {x, other}, map, to});
      return;
    }
    const bool is_short = shape_.inner <= kHeld * kWarp;
    const auto kernel = WithFormat(type_, [&](auto format) {
      using Format = decltype(format);
      return is_short ? RowMapKernel<Format, Map, kWarp>
                      : RowMapKernel<Format, Map, kBlock>;
    });
    const Index rows = shape_.outer * shape_.channels, teams = rows * row_parts_;
    launcher.Run(kernel, is_short ? CeilDiv(teams, Index{kBlockWarps}) : teams, 0,
                 RowMapArguments<Map>{rows, shape_.channels, shape_.inner, row_parts_,
                                      {x, other}, map, to});
  }

 private:
  ChannelShape shape_;
  DataType type_;
  ColumnParts columns_;
  Index row_parts_;
};

inline std::size_t WorkspaceFloats(const BatchNorm& norm) {
  if (norm.inference) return 0;
  return static_cast<std::size_t>(ChannelLaunches(norm.shape, norm.type).partials());
}

inline std::size_t WorkspaceFloats(const BatchNormGradient& gradient) {
  const ChannelLaunches launches(gradient.shape, gradient.type);
  return static_cast<std::size_t>(GradientTerm::kSums * launches.partials());
}

template <class Launcher>
void LaunchBatchNorm(const BatchNorm& norm, float* workspace, Launcher& launcher) {
  const ChannelLaunches launches(norm.shape, norm.type);
  const double count = static_cast<double>(launches.count());
  if (!norm.inference) {
    launches.Sum<PlainTerm>(norm.x, nullptr, NoScales{}, count, {norm.mean}, workspace,
                            launcher);
    launches.Sum<SquareTerm>(norm.x, nullptr, ChannelScales{norm.mean, nullptr, 0}, count,
                             {norm.variance}, workspace, launcher);
  }
  launches.Compute(
      norm.x, nullptr,
      NormalizeMap{norm.mean, norm.variance, norm.gamma, norm.beta, norm.epsilon}, norm.y,
      launcher);
}

template <class Launcher>
void LaunchBatchNormGradient(const BatchNormGradient& gradient, float* workspace,
                             Launcher& launcher) {
  const ChannelLaunches launches(gradient.shape, gradient.type);
  launches.Sum<GradientTerm>(
      gradient.x, gradient.grad_y,
      ChannelScales{gradient.mean, gradient.variance, gradient.epsilon}, 1,
      {gradient.grad_beta, gradient.grad_gamma}, workspace, launcher);
  const Index count = gradient.inference ? 0 : launches.count();
  launches.Compute(gradient.x, gradient.grad_y,
                   GradientMap{gradient.mean, gradient.variance, gradient.gamma,
                               gradient.grad_beta, gradient.grad_gamma, gradient.epsilon,
                               static_cast<float>(count)},
                   gradient.grad_x, launcher);
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_NORM_BATCH_NORM_LAUNCH_H_
