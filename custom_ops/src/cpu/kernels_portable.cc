#include "cpu/kernels_simd.h"
#include "cpu/simd/portable.h"

const keras_mp::Kernels* keras_mp::PortableKernels() { return &kKernels<Portable>; }
