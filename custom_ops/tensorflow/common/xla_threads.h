// XLA's thread pool as the `Parallel` of the CPU kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/parallel_loop.h"
#include "keras_mp/cpu.h"
#include "xla/ffi/api/ffi.h"

namespace keras_mp {

inline Parallel XlaThreads(xla::ffi::ThreadPool& pool) {
  const auto threads = std::max<std::int64_t>(1, pool.num_threads());
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto& pool = *static_cast<xla::ffi::ThreadPool*>(state);
    RunLoop(count, static_cast<int>(pool.num_threads()), context, body,
            [&pool](int, auto work) { pool.Schedule(std::move(work)); });
  };
  return {static_cast<int>(threads), &pool, run};
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_
