// KerasMp>Fp16Gemm on a GPU: the kernels of gemm_cuda.h on TensorFlow's stream.

#include <cstdlib>
#include <string>

#include "gemm/op_kernel.h"
#include "keras_mp/gemm_cuda.h"
#include "tensorflow/core/platform/logging.h"
#include "xla/stream_executor/stream.h"

namespace keras_mp {
namespace {

class Fp16GemmGpuOp : public Fp16GemmOp {
 public:
  explicit Fp16GemmGpuOp(tensorflow::OpKernelConstruction* ctx) : Fp16GemmOp(ctx) {
    const char* chosen = std::getenv("KERAS_MP_GEMM");
    const std::string name = chosen ? chosen : "auto";
    OP_REQUIRES(ctx, name == "auto" || name == "own" || name == "cublaslt",
                absl::InvalidArgumentError(absl::StrCat(
                    "KERAS_MP_GEMM must be auto, own or cublaslt. Received: ", name)));
    if (name != "own") route_ = CudaRoute::kCublasLt;
    may_fall_back_ = name == "auto";
  }

 protected:
  Status Multiply(tensorflow::OpKernelContext* ctx, const Gemm& gemm) override {
    // Where cuBLASLt is missing or has no algorithm, the kernel of this library computes.
    const Status status = MultiplyOn(route_, ctx, gemm);
    if (status.code != StatusCode::kUnimplemented || !may_fall_back_) return status;
    LOG_FIRST_N(WARNING, 1) << "keras_mp: the own kernel computes what cuBLASLt did not: "
                            << status.message;
    return MultiplyOn(CudaRoute::kOwn, ctx, gemm);
  }

 private:
  static Status MultiplyOn(CudaRoute route, tensorflow::OpKernelContext* ctx,
                           const Gemm& gemm) {
    const auto bytes = static_cast<std::int64_t>(WorkspaceBytes(gemm, route));
    tensorflow::Tensor workspace;
    if (!ctx->allocate_temp(tensorflow::DT_INT8, {bytes}, &workspace).ok()) {
      return {StatusCode::kOutOfMemory, "no device memory for the workspace"};
    }
    void* stream = ctx->op_device_context()->stream()->platform_specific_handle().stream;
    return GemmCuda(gemm, route, workspace.data(), bytes, stream);
  }

  CudaRoute route_ = CudaRoute::kOwn;  // the first one that is tried
  bool may_fall_back_ = false;
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Fp16Gemm").Device(tensorflow::DEVICE_GPU),
                        Fp16GemmGpuOp);

}  // namespace
}  // namespace keras_mp
