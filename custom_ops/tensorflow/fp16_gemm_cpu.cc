// KerasMp>Fp16Gemm on a CPU: the kernel of gemm_cpu.h on TensorFlow's threads.

#include "fp16_gemm_kernel.h"
#include "keras_mp/gemm_cpu.h"
#include "tensorflow/core/platform/threadpool.h"

namespace keras_mp {
namespace {

using tensorflow::thread::ThreadPool;

void RunOn(void* pool, std::int64_t count, void* context, Parallel::Body body) {
  const auto one_at_a_time = ThreadPool::SchedulingParams::Fixed(/*block_size=*/1);
  static_cast<ThreadPool*>(pool)->ParallelFor(
      count, one_at_a_time, [context, body](std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) body(context, i);
      });
}

class Fp16GemmCpuOp : public Fp16GemmOp {
 public:
  using Fp16GemmOp::Fp16GemmOp;

 protected:
  Status Multiply(tensorflow::OpKernelContext* ctx, const Gemm& gemm) override {
    const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
    return GemmCpu(gemm, {workers.num_threads, workers.workers, RunOn});
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Fp16Gemm").Device(tensorflow::DEVICE_CPU),
                        Fp16GemmCpuOp);

}  // namespace
}  // namespace keras_mp
