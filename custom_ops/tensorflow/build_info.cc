// What the library says of itself.

#include "keras_mp/cpu.h"

#define KERAS_MP_EXPORT __attribute__((visibility("default")))

extern "C" {

// Read from the file, before it is loaded: with another TensorFlow it may not load.
KERAS_MP_EXPORT extern const char kKerasMpBuild[] = "keras_mp build " KERAS_MP_BUILD;

KERAS_MP_EXPORT const char* KerasMpCpuInstructions() {
  return keras_mp::Name(keras_mp::BestIsa());
}

}  // extern "C"
