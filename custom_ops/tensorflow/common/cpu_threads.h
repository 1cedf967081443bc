// TensorFlow's thread pool as the `Parallel` of the CPU kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_
#define KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_

#include <cstdint>

#include "common/parallel_loop.h"
#include "keras_mp/cpu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace keras_mp {

// The hint lets mostly the same threads work on every loop: what they packed and summed
// last is in the caches of their cores.
inline Parallel CpuThreads(tensorflow::OpKernelContext* ctx) {
  using tensorflow::thread::ThreadPool;
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto* pool = static_cast<ThreadPool*>(state);
    RunLoop(count, pool->NumThreads(), context, body, [pool](int thread, auto work) {
      pool->ScheduleWithHint(work, thread, thread + 1);
    });
  };
  return {workers.num_threads, workers.workers, run};
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_
