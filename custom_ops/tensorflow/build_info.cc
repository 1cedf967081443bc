// What the library says of itself.

#include "keras_mp/cpu.h"
#ifdef KERAS_MP_HAS_CUDA
#include "keras_mp/update_cuda.h"
#endif

#define KERAS_MP_EXPORT __attribute__((visibility("default")))

extern "C" {

// Read from the file, before it is loaded: with another TensorFlow it may not load.
KERAS_MP_EXPORT extern const char kKerasMpBuild[] = "keras_mp build " KERAS_MP_BUILD;

KERAS_MP_EXPORT const char* KerasMpCpuInstructions() {
  return keras_mp::Name(keras_mp::BestIsa());
}

// Why the kernels for CUDA devices cannot run here; empty where they can.
KERAS_MP_EXPORT const char* KerasMpCudaProblem() {
#ifdef KERAS_MP_HAS_CUDA
  const char* why;
  keras_mp::IsUpdateCudaAvailable(&why);
  return why;
#else
  return "the library was built without CUDA";
#endif
}

}  // extern "C"
