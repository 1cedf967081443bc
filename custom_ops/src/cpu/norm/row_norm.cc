// The driver of row normalization (layer, root mean square, unit length) on a CPU: runs
// the kernel of the instruction set (cpu/norm/row_norm_kernel_simd.h) on each row, in
// parallel.
//
//   y = round(gamma * z + beta), z the normalized row of keras_mp/row_norm_cpu.h
//
// x and y are [rows, size], packed; gamma and beta [size].
//
//   cmake --build build/custom_ops --target row_norm_cpu_test &&
//     build/custom_ops/row_norm_cpu_test

#include "keras_mp/row_norm_cpu.h"

#include <algorithm>

#include "common/ceil_div.h"
#include "cpu/kernels.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/partial_sums.h"

namespace keras_mp {
namespace {

// Sums the partial sums of all groups of rows, in double.
void SumGroups(PartialSums& parts, std::int64_t groups, std::int64_t size, float* total) {
  for (std::int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::int64_t group = 0; group < groups; ++group) sum += parts[group][i];
    total[i] = static_cast<float>(sum);
  }
}

}  // namespace

Status RowNormCpu(const RowNorm& norm, const Parallel& parallel, Isa isa) {
  const Status status = CheckRows(norm.rows, norm.size, norm.type, isa);
  if (!status.ok() || IsEmpty({norm.rows, norm.size})) return status;
  const auto row = KernelsOf(isa)->row_norm->compute;
  ParallelFor(parallel, norm.rows, norm.size, [&](std::int64_t i) { row(norm, i); });
  return {};
}

Status RowNormGradientCpu(const RowNormGradient& gradient, const Parallel& parallel,
                          Isa isa) {
  const std::int64_t rows = gradient.rows, size = gradient.size;
  const Status status = CheckRows(rows, size, gradient.type, isa);
  if (!status.ok() || size == 0) return status;
  const auto row = KernelsOf(isa)->row_norm->compute_gradient;

  // Groups of rows, whose gradients of gamma and beta are summed in FP32.
  constexpr std::int64_t kFewest = 16, kMost = 256;
  const std::int64_t fit = kElementsPerTask / std::max<std::int64_t>(1, size);
  const std::int64_t group_rows = std::clamp(fit, kFewest, kMost);
  const std::int64_t groups = CeilDiv(rows, group_rows);
  PartialSums grad_gamma(gradient.grad_gamma ? groups : 0, size);
  PartialSums grad_beta(gradient.grad_beta ? groups : 0, size);
  if (!grad_gamma.ok() || !grad_beta.ok()) {
    return {StatusCode::kOutOfMemory, "no memory for partial sums"};
  }
  ParallelFor(parallel, groups, group_rows * size, [&](std::int64_t group) {
    float* gamma = gradient.grad_gamma ? grad_gamma[group] : nullptr;
    float* beta = gradient.grad_beta ? grad_beta[group] : nullptr;
    if (gamma) std::fill_n(gamma, size, 0.0f);
    if (beta) std::fill_n(beta, size, 0.0f);
    const std::int64_t end = std::min(rows, (group + 1) * group_rows);
    for (std::int64_t i = group * group_rows; i < end; ++i) {
      row(gradient, i, gamma, beta);
    }
  });
  if (gradient.grad_gamma) SumGroups(grad_gamma, groups, size, gradient.grad_gamma);
  if (gradient.grad_beta) SumGroups(grad_beta, groups, size, gradient.grad_beta);
  return {};
}

}  // namespace keras_mp
