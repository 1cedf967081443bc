// The launcher of a folder's launch.h that runs a kernel on the host before the call
// returns, thread by thread (emulator.h, which has to be included first).

#ifndef KERAS_MP_TESTS_CUDA_HOST_LAUNCHER_H_
#define KERAS_MP_TESTS_CUDA_HOST_LAUNCHER_H_

#include <cstddef>

namespace keras_mp::cuda {

template <int kThreads>
struct HostLauncher {
  template <class Arguments>
  bool Run(void (*kernel)(Arguments), Index blocks, std::size_t shared_bytes,
           const Arguments& arguments) {
    gridDim = {static_cast<unsigned>(blocks), 1, 1};
    for (unsigned block = 0; block < gridDim.x; ++block) {
      blockIdx = {block, 0, 0};
      emulator::Machine::Get().Run([&] { kernel(arguments); }, {kThreads, 1, 1},
                                   shared_bytes, block);
    }
    return true;
  }
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_TESTS_CUDA_HOST_LAUNCHER_H_
