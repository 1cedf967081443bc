// TensorFlow's thread pool as the `Parallel` of the CPU kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_
#define KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "keras_mp/cpu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace keras_mp {

inline Parallel CpuThreads(tensorflow::OpKernelContext* ctx) {
  using tensorflow::thread::ThreadPool;
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto* pool = static_cast<ThreadPool*>(state);
    std::atomic<std::int64_t> next{0};
    const auto take_tasks = [&next, count, context, body](std::int64_t, std::int64_t) {
      for (std::int64_t i; (i = next++) < count;) body(context, i);
    };
    // As many runners as threads, the caller among them: one more would share a core with
    // another one, and each switch would find the caches full of the other's data.
    const auto runners = std::min<std::int64_t>(count, pool->NumThreads());
    const auto one_at_a_time = ThreadPool::SchedulingParams::Fixed(/*block_size=*/1);
    pool->ParallelFor(runners, one_at_a_time, take_tasks);
  };
  return {workers.num_threads, workers.workers, run};
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_CPU_THREADS_H_
