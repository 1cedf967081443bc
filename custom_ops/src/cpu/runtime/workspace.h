// Scratch memory of a thread, kept from one call to the next.

#ifndef KERAS_MP_SRC_CPU_RUNTIME_WORKSPACE_H_
#define KERAS_MP_SRC_CPU_RUNTIME_WORKSPACE_H_

#include <cstddef>

namespace keras_mp {

// At least `bytes` bytes, aligned to 64, valid until this thread's next call; null when
// there is no memory. Freed when the thread ends.
void* ThreadWorkspace(std::size_t bytes);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_RUNTIME_WORKSPACE_H_
