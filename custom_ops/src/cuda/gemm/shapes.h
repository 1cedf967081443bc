// The tile shapes that are compiled. A new shape needs a line here, a TileKind, a
// candidate in cuda/gemm/plan.cc, and a case where kernels are launched: in
// cuda/gemm/mma_launch.cuh or cuda/gemm/wmma.cu.

#ifndef KERAS_MP_SRC_CUDA_GEMM_SHAPES_H_
#define KERAS_MP_SRC_CUDA_GEMM_SHAPES_H_

#include "cuda/gemm/layout.h"

namespace keras_mp::cuda {

// sm_80 and up. Large needs 96 KiB of shared memory, which every such device has (99 KiB
// on sm_86, 89 and 120). MmaNarrow is for few columns, MmaFlat for few rows.
using MmaLarge = TileShape<128, 256, 32, 64, 64, 4>;
using MmaMedium = TileShape<128, 128, 32, 64, 64, 4>;
using MmaSmall = TileShape<64, 64, 64, 32, 32, 4>;
using MmaNarrow = TileShape<128, 32, 64, 32, 32, 4>;
using MmaFlat = TileShape<32, 128, 64, 32, 32, 4>;

// sm_70 and sm_75: no asynchronous copies, one or two tiles in shared memory and one in
// registers. One block of Medium fills a multiprocessor with its registers, so that nothing
// else computes while it waits: with two tiles it waits once in a step. Of Small several
// blocks take turns, and with two tiles there would be fewer of them.
using WmmaMedium = TileShape<128, 128, 32, 32, 64, 2>;
using WmmaSmall = TileShape<64, 64, 32, 32, 32, 1>;

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_SHAPES_H_
