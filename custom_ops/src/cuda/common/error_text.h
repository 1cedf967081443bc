// What an error of CUDA means, for a person.

#ifndef KERAS_MP_SRC_CUDA_COMMON_ERROR_TEXT_H_
#define KERAS_MP_SRC_CUDA_COMMON_ERROR_TEXT_H_

#include <cuda_runtime_api.h>

#include <string>

namespace keras_mp::cuda {

// As cudaGetErrorString; of a driver that is too old both versions, which CUDA's own text
// leaves out. The text stays valid.
inline const char* ErrorText(cudaError_t error) {
  if (error != cudaErrorInsufficientDriver) return cudaGetErrorString(error);
  static const std::string* text = [] {
    int driver = 0;  // 12040 for CUDA 12.4; 0 where there is no driver
    cudaDriverGetVersion(&driver);
    const std::string needed = std::to_string(CUDART_VERSION / 1000);
    return new std::string(
        driver == 0 ? "this machine has no NVIDIA driver"
                    : "the NVIDIA driver is too old: it is for CUDA " +
                          std::to_string(driver / 1000) + "." +
                          std::to_string(driver % 1000 / 10) +
                          ", and these kernels need one for CUDA " + needed);
  }();
  return text->c_str();
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_COMMON_ERROR_TEXT_H_
