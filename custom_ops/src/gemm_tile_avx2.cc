// Compiled with the flags of this instruction set where the compiler has them.

#include "gemm_tile.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "gemm_tile_impl.h"
#include "simd_avx2.h"

const keras_mp::TileKernel* keras_mp::Avx2Kernel() { return MakeTileKernel<Avx2>(); }
#else
const keras_mp::TileKernel* keras_mp::Avx2Kernel() { return nullptr; }
#endif
