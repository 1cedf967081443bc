// A CPU, for the class of an op: the threads of TensorFlow or XLA as the `Parallel` of the
// kernels.

#ifndef KERAS_MP_TENSORFLOW_COMMON_CPU_DEVICE_H_
#define KERAS_MP_TENSORFLOW_COMMON_CPU_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/parallel_loop.h"
#include "keras_mp/cpu.h"
#include "keras_mp/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"
#include "xla/ffi/api/ffi.h"

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

class CpuDevice {
 public:
  static constexpr bool kIsCpu = true;
  // The names under which kernels and handlers are registered.
  static constexpr char kKernel[] = "CPU", kXlaKernel[] = "XLA_CPU_JIT";
  static constexpr char kHandler[] = "Host";
  // What XLA decodes for a handler.
  using CallContext = xla::ffi::ThreadPool;

  explicit CpuDevice(tensorflow::OpKernelContext* ctx) : threads_(CpuThreads(ctx)) {}
  // Not longer than the pool.
  explicit CpuDevice(xla::ffi::ThreadPool& pool) : threads_(XlaThreads(pool)) {}

  const Parallel& threads() const { return threads_; }

  Status SetZero(float* number) const {
    *number = 0;
    return {};
  }
  Status Copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }

 private:
  Parallel threads_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_CPU_DEVICE_H_
