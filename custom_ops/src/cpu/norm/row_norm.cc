#include "keras_mp/row_norm_cpu.h"

#include <algorithm>

#include "cpu/kernels.h"
#include "common/ceil_div.h"
#include "cpu/runtime/parallel.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/norm/partial_sums.h"

namespace keras_mp {
namespace {

// Adds up what each group of rows has, in double.
void AddUp(Rows& parts, std::int64_t groups, std::int64_t size, float* total) {
  for (std::int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::int64_t group = 0; group < groups; ++group) sum += parts[group][i];
    total[i] = static_cast<float>(sum);
  }
}

}  // namespace

Status RowNormCpu(const RowNorm& norm, const Parallel& parallel, Isa isa) {
  const Status status = CheckRows(norm.rows, norm.size, norm.type, isa);
  if (!status.ok() || HasNone({norm.rows, norm.size})) return status;
  const auto row = KernelsOf(isa)->rows->norm;
  ForPieces(parallel, norm.rows, norm.size, [&](std::int64_t i) { row(norm, i); });
  return {};
}

Status RowNormGradientCpu(const RowNormGradient& gradient, const Parallel& parallel,
                          Isa isa) {
  const std::int64_t rows = gradient.rows, size = gradient.size;
  const Status status = CheckRows(rows, size, gradient.type, isa);
  if (!status.ok() || size == 0) return status;
  const auto row = KernelsOf(isa)->rows->norm_gradient;

  // Rows whose gradients of gamma and beta are added up in FP32.
  constexpr std::int64_t kFewest = 16, kMost = 256;
  const std::int64_t fit = kNumbersOfATask / std::max<std::int64_t>(1, size);
  const std::int64_t of_a_group = std::clamp(fit, kFewest, kMost);
  const std::int64_t groups = CeilDiv(rows, of_a_group);
  Rows of_gamma(gradient.of_gamma ? groups : 0, size);
  Rows of_beta(gradient.of_beta ? groups : 0, size);
  if (!of_gamma.ok() || !of_beta.ok()) {
    return {StatusCode::kOutOfMemory, "no memory for partial sums"};
  }
  ForPieces(parallel, groups, of_a_group * size, [&](std::int64_t group) {
    float* gamma = gradient.of_gamma ? of_gamma[group] : nullptr;
    float* beta = gradient.of_beta ? of_beta[group] : nullptr;
    if (gamma) std::fill_n(gamma, size, 0.0f);
    if (beta) std::fill_n(beta, size, 0.0f);
    const std::int64_t end = std::min(rows, (group + 1) * of_a_group);
    for (std::int64_t i = group * of_a_group; i < end; ++i) {
      row(gradient, i, gamma, beta);
    }
  });
  if (gradient.of_gamma) AddUp(of_gamma, groups, size, gradient.of_gamma);
  if (gradient.of_beta) AddUp(of_beta, groups, size, gradient.of_beta);
  return {};
}

}  // namespace keras_mp
