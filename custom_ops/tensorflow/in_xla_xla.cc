// KerasMp>InXla for XLA: the constant 1, known when the branches are compiled.

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/lib/constants.h"

namespace keras_mp {
namespace {

class InXlaXlaOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* ctx) override {
    ctx->SetOutput(0, xla::ConstantR0<std::int32_t>(ctx->builder(), 1));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>InXla").Device("XLA_CPU_JIT"), InXlaXlaOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>InXla").Device("XLA_GPU_JIT"), InXlaXlaOp);

}  // namespace
}  // namespace keras_mp
