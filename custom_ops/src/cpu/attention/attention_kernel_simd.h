// Attention and its gradient for one instruction set: selects the format of the tensors. A
// template, as cpu/gemm/gemm_kernel_simd.h.
//
//   cmake --build build/custom_ops --target attention_cpu_test &&
//     build/custom_ops/attention_cpu_test

#ifndef KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_

#include <cstddef>

#include "cpu/attention/attention_kernel.h"
#include "cpu/attention/forward_simd.h"
#include "cpu/attention/gradient_simd.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

template <class Simd>
struct AttentionOf {
  // The kernel `Kernel` for the format of the tensors.
  template <template <class, class> class Kernel, class Function>
  static auto With(DataType type, const Function& function) {
    switch (type) {
      case DataType::kHalf:
        return function(Kernel<Simd, Half<Simd>>());
      case DataType::kBfloat16:
        return function(Kernel<Simd, Bfloat16<Simd>>());
      case DataType::kFloat:
        break;
    }
    return function(Kernel<Simd, Single<Simd>>());
  }

  static std::size_t WorkspaceBytes(const Attention& a) {
    return With<AttentionForward>(
        a.type, [&](auto kernel) { return kernel.WorkspaceBytes(a); });
  }
  static void Compute(const Attention& a, const AttentionResult& result,
                      const AttentionTask& task, void* workspace) {
    With<AttentionForward>(
        a.type, [&](auto kernel) { kernel.Compute(a, result, task, workspace); });
  }
  static std::size_t GradientWorkspaceBytes(const Attention& a,
                                            const AttentionGradientTask& task) {
    return With<AttentionBackward>(
        a.type, [&](auto kernel) { return kernel.WorkspaceBytes(a, task); });
  }
  static void ComputeGradient(const Attention& a, const AttentionGradient& gradient,
                              const AttentionGradientTask& task, void* workspace) {
    With<AttentionBackward>(
        a.type, [&](auto kernel) { kernel.Compute(a, gradient, task, workspace); });
  }
};

template <class Simd>
constexpr AttentionKernel kAttention = {
    AttentionOf<Simd>::WorkspaceBytes,
    AttentionOf<Simd>::Compute,
    AttentionOf<Simd>::GradientWorkspaceBytes,
    AttentionOf<Simd>::ComputeGradient,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_ATTENTION_ATTENTION_KERNEL_SIMD_H_
