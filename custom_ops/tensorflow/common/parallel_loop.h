// A parallel loop on the threads of a pool, for the `Parallel` of the CPU kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_PARALLEL_LOOP_H_
#define KERAS_MP_TENSORFLOW_COMMON_PARALLEL_LOOP_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/synchronization/notification.h"
#include "keras_mp/cpu.h"

namespace keras_mp {

// A loop whose indices are handed out to threads one by one. A thread that starts when
// all are taken has nothing to do, so Wait() waits for the indices and not for the
// threads.
struct ParallelLoop {
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

// Calls body(context, i) for each i in [0, count), on `threads` threads, this one among
// them. schedule(thread, work) has another one, from 0 on, call work(). One thread more
// would share a core with another, and each switch would find the caches full of the
// other's data.
template <class Schedule>
void RunLoop(std::int64_t count, int threads, void* context, Parallel::Body body,
             const Schedule& schedule) {
  const auto loop = std::make_shared<ParallelLoop>();
  loop->count = count;
  loop->context = context;
  loop->body = body;
  const auto others = static_cast<int>(std::min<std::int64_t>(count, threads)) - 1;
  for (int thread = 0; thread < others; ++thread) {
    schedule(thread, [loop] { loop->Work(); });
  }
  loop->Work();
  loop->Wait();
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_PARALLEL_LOOP_H_
