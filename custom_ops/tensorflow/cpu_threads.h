// TensorFlow's threads as the kernels for a CPU take them.

#ifndef KERAS_MP_TENSORFLOW_CPU_THREADS_H_
#define KERAS_MP_TENSORFLOW_CPU_THREADS_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace keras_mp {

inline Parallel CpuThreads(tensorflow::OpKernelContext* ctx) {
  using tensorflow::thread::ThreadPool;
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  const auto run = [](void* pool, std::int64_t count, void* context,
                      Parallel::Body body) {
    const auto one_at_a_time = ThreadPool::SchedulingParams::Fixed(/*block_size=*/1);
    static_cast<ThreadPool*>(pool)->ParallelFor(
        count, one_at_a_time, [context, body](std::int64_t first, std::int64_t end) {
          for (std::int64_t i = first; i < end; ++i) body(context, i);
        });
  };
  return {workers.num_threads, workers.workers, run};
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_CPU_THREADS_H_
