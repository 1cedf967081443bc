#include "kernels_impl.h"
#include "simd_portable.h"

const keras_mp::Kernels* keras_mp::PortableKernels() { return &kKernels<Portable>; }
