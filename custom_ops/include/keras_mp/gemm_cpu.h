// The product of gemm.h on a CPU. All pointers, also alpha, are to host memory.

#ifndef KERAS_MP_GEMM_CPU_H_
#define KERAS_MP_GEMM_CPU_H_

#include "keras_mp/cpu.h"
#include "keras_mp/gemm.h"

namespace keras_mp {

// Computes `gemm`. The result depends on `isa` to the last bit, and never on the number
// of threads; but on amx_bf16, what of an FP16 product is finite beside inf or NaN may do
// so within its bound.
Status GemmCpu(const Gemm& gemm, const Parallel& parallel = {}, Isa isa = ChosenIsa());

}  // namespace keras_mp

#endif  // KERAS_MP_GEMM_CPU_H_
