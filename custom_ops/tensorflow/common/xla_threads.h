// XLA's thread pool as the `Parallel` of the CPU kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/synchronization/notification.h"
#include "keras_mp/cpu.h"
#include "xla/ffi/api/ffi.h"

namespace keras_mp {

// A loop whose indices are handed out to threads one by one. A thread that starts when
// all are taken has nothing to do, so Wait() waits for the indices and not for the
// threads.
struct XlaLoop {
  std::int64_t count;
  void* context;
  Parallel::Body body;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> done{0};
  // Not std::condition_variable: its wait() of GCC 12 is in no older libstdc++.
  absl::Notification all_done;

  void Work() {
    std::int64_t done_here = 0;
    for (std::int64_t i; (i = next++) < count; ++done_here) body(context, i);
    if (done_here == 0) return;
    if ((done += done_here) == count) all_done.Notify();
  }

  void Wait() {
    if (count > 0) all_done.WaitForNotification();
  }
};

// Adapts XLA's thread pool to the interface of the kernels.
inline Parallel XlaThreads(xla::ffi::ThreadPool& pool) {
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto& pool = *static_cast<xla::ffi::ThreadPool*>(state);
    const auto loop = std::make_shared<XlaLoop>();
    loop->count = count;
    loop->context = context;
    loop->body = body;
    for (std::int64_t i = 1; i < std::min(count, pool.num_threads()); ++i) {
      pool.Schedule([loop] { loop->Work(); });
    }
    loop->Work();
    loop->Wait();
  };
  const auto threads = std::max<std::int64_t>(1, pool.num_threads());
  return {static_cast<int>(threads), &pool, run};
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_THREADS_H_
