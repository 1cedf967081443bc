#include "gemm_tile_impl.h"
#include "simd_portable.h"

const keras_mp::TileKernel* keras_mp::PortableKernel() {
  return MakeTileKernel<Portable>();
}
