// Compiled with the flags of this instruction set where the compiler has them.

#include "gemm_tile.h"

#if defined(__aarch64__)
#include "gemm_tile_impl.h"
#include "simd_neon.h"

const keras_mp::TileKernel* keras_mp::NeonKernel() { return MakeTileKernel<Neon>(); }
#else
const keras_mp::TileKernel* keras_mp::NeonKernel() { return nullptr; }
#endif
