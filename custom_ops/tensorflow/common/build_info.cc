// The exported functions that describe the library: its build, instruction sets and CUDA.

#include <string>

#include "keras_mp/cpu.h"
#ifdef KERAS_MP_HAS_CUDA
#include "keras_mp/gemm_cuda.h"
#include "keras_mp/update_cuda.h"
#endif

#define KERAS_MP_EXPORT __attribute__((visibility("default")))

extern "C" {

// Read from the file before it is loaded, which may fail with another TensorFlow.
KERAS_MP_EXPORT extern const char kKerasMpBuild[] = "keras_mp build " KERAS_MP_BUILD;

KERAS_MP_EXPORT const char* KerasMpCpuInstructions() {
  return keras_mp::Name(keras_mp::ChosenIsa());
}

// The names of the supported instruction sets, the fastest last.
KERAS_MP_EXPORT const char* KerasMpSupportedCpuInstructions() {
  static const std::string* names = [] {
    auto* joined = new std::string;
    for (keras_mp::Isa isa : keras_mp::kIsas) {
      if (!keras_mp::IsSupported(isa)) continue;
      if (!joined->empty()) *joined += ' ';
      *joined += keras_mp::Name(isa);
    }
    return joined;
  }();
  return names->c_str();
}

// update_rules.def, a row a line: name, slots, tokens, needs_norms.
KERAS_MP_EXPORT const char* KerasMpUpdateRules() {
  return
#define KERAS_MP_RULE(rule, name, slots, tokens, needs_norms) \
  name "," slots "," #tokens "," #needs_norms "\n"
#include "keras_mp/update_rules.def"
      ;
}

// The hyperparameters of all rules, in order: name, default.
KERAS_MP_EXPORT const char* KerasMpUpdateHyperparameters() {
  return
#define KERAS_MP_HYPERPARAMETER(name, value) #name "," #value "\n"
#include "keras_mp/update_rules.def"
      ;
}

// The reason why the CUDA kernels cannot run; empty where they can.
KERAS_MP_EXPORT const char* KerasMpCudaProblem() {
#ifdef KERAS_MP_HAS_CUDA
  const char* why;
  if (keras_mp::IsUpdateCudaAvailable(&why)) {
    keras_mp::IsAvailable(keras_mp::CudaRoute::kOwn, &why);
  }
  return why;
#else
  return "the library was built without CUDA";
#endif
}

}  // extern "C"
