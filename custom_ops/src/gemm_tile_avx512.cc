// Compiled with the flags of this instruction set where the compiler has them.

#include "gemm_tile.h"

#if defined(__AVX512F__)
#include "gemm_tile_impl.h"
#include "simd_avx512.h"

const keras_mp::TileKernel* keras_mp::Avx512Kernel() { return MakeTileKernel<Avx512>(); }
#else
const keras_mp::TileKernel* keras_mp::Avx512Kernel() { return nullptr; }
#endif
