// KerasMp>Fp16Gemm on a CPU: the kernel of gemm_cpu.h on TensorFlow's threads.

#include "common/cpu_device.h"
#include "gemm/op_kernel.h"
#include "keras_mp/gemm_cpu.h"

namespace keras_mp {
namespace {

class Fp16GemmCpuOp : public Fp16GemmOp {
 public:
  using Fp16GemmOp::Fp16GemmOp;

 protected:
  Status Multiply(tensorflow::OpKernelContext* ctx, const Gemm& gemm) override {
    return GemmCpu(gemm, CpuThreads(ctx));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Fp16Gemm").Device(tensorflow::DEVICE_CPU),
                        Fp16GemmCpuOp);

}  // namespace
}  // namespace keras_mp
