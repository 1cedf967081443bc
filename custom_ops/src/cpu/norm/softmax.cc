// The driver of the softmax on a CPU: runs the kernel of the instruction set
// (cpu/norm/softmax_kernel_simd.h) on each row, in parallel.
//
//   y = round(exp(x - max(x)) / sum(exp(x - max(x))))
//
// Matrices are [rows, size], packed.
//
//   cmake --build build/custom_ops --target softmax_cpu_test &&
//     build/custom_ops/softmax_cpu_test

#include "keras_mp/softmax_cpu.h"

#include "cpu/kernels.h"
#include "cpu/norm/check_arguments.h"
#include "cpu/runtime/parallel.h"

namespace keras_mp {

namespace {

// Runs a function of the kernel on each row of a problem.
template <class Problem>
Status ForRows(const Problem& problem, const Parallel& parallel, Isa isa,
               void (*SoftmaxKernel::*function)(const Problem&, std::int64_t)) {
  const Status status = CheckRows(problem.rows, problem.size, problem.type, isa);
  if (!status.ok() || IsEmpty({problem.rows, problem.size})) return status;
  const auto row = KernelsOf(isa)->softmax->*function;
  ParallelFor(parallel, problem.rows, problem.size,
              [&](std::int64_t i) { row(problem, i); });
  return {};
}

}  // namespace

Status SoftmaxCpu(const Softmax& softmax, const Parallel& parallel, Isa isa) {
  return ForRows(softmax, parallel, isa, &SoftmaxKernel::compute);
}

Status SoftmaxGradientCpu(const SoftmaxGradient& gradient, const Parallel& parallel,
                          Isa isa) {
  return ForRows(gradient, parallel, isa, &SoftmaxKernel::compute_gradient);
}

Status FloatSoftmaxGradientCpu(const FloatSoftmaxGradient& gradient,
                               const Parallel& parallel, Isa isa) {
  return ForRows(gradient, parallel, isa, &SoftmaxKernel::compute_float_gradient);
}

}  // namespace keras_mp
