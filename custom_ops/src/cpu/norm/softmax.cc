#include "keras_mp/softmax_cpu.h"

#include "cpu/kernels.h"
#include "cpu/runtime/parallel.h"
#include "cpu/norm/check_arguments.h"

namespace keras_mp {

Status SoftmaxCpu(const Softmax& softmax, const Parallel& parallel, Isa isa) {
  const Status status = CheckRows(softmax.rows, softmax.size, softmax.type, isa);
  if (!status.ok() || HasNone({softmax.rows, softmax.size})) return status;
  const auto row = KernelsOf(isa)->rows->softmax;
  ForPieces(parallel, softmax.rows, softmax.size,
            [&](std::int64_t i) { row(softmax, i); });
  return {};
}

Status SoftmaxGradientCpu(const SoftmaxGradient& gradient, const Parallel& parallel,
                          Isa isa) {
  const Status status = CheckRows(gradient.rows, gradient.size, gradient.type, isa);
  if (!status.ok() || HasNone({gradient.rows, gradient.size})) return status;
  const auto row = KernelsOf(isa)->rows->softmax_gradient;
  ForPieces(parallel, gradient.rows, gradient.size,
            [&](std::int64_t i) { row(gradient, i); });
  return {};
}

}  // namespace keras_mp
