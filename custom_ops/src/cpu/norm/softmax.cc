// The driver of the softmax on a CPU: runs the kernel of the instruction set
// (cpu/norm/softmax_kernel_simd.h) on each row, in parallel.
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//
// x and y are [rows, size], packed.
//
//   cmake --build build/cpp-plain --target softmax_cpu_test &&
//     build/cpp-plain/softmax_cpu_test

#include "keras_mp/softmax_cpu.h"

#include "cpu/kernels.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/runtime/parallel.h"

namespace keras_mp {

Status SoftmaxCpu(const Softmax& softmax, const Parallel& parallel, Isa isa) {
  const Status status = CheckRows(softmax.rows, softmax.size, softmax.type, isa);
  if (!status.ok() || IsEmpty({softmax.rows, softmax.size})) return status;
  const auto row = KernelsOf(isa)->softmax->compute;
  ParallelFor(parallel, softmax.rows, softmax.size,
              [&](std::int64_t i) { row(softmax, i); });
  return {};
}

Status SoftmaxGradientCpu(const SoftmaxGradient& gradient, const Parallel& parallel,
                          Isa isa) {
  const Status status = CheckRows(gradient.rows, gradient.size, gradient.type, isa);
  if (!status.ok() || IsEmpty({gradient.rows, gradient.size})) return status;
  const auto row = KernelsOf(isa)->softmax->compute_gradient;
  ParallelFor(parallel, gradient.rows, gradient.size,
              [&](std::int64_t i) { row(gradient, i); });
  return {};
}

}  // namespace keras_mp
