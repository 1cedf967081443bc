// A GPU, for the class of an op: the stream of TensorFlow or XLA, and scratch memory for
// the work that an op puts on it.

#ifndef KERAS_MP_TENSORFLOW_COMMON_GPU_DEVICE_H_
#define KERAS_MP_TENSORFLOW_COMMON_GPU_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "keras_mp/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/ffi/api/ffi.h"
#include "xla/stream_executor/stream.h"

namespace keras_mp {

// What XLA decodes for a handler.
struct GpuCallContext {
  cudaStream_t stream;
  xla::ffi::ScratchAllocator scratch;
};

class GpuDevice {
 public:
  static constexpr bool kIsCpu = false;
  // The names under which kernels and handlers are registered.
  static constexpr char kKernel[] = "GPU", kXlaKernel[] = "XLA_GPU_JIT";
  static constexpr char kHandler[] = "CUDA";
  using CallContext = GpuCallContext;

  // TensorFlow's allocator returns the memory to other ops once the device is destroyed.
  // Its work is on the stream by then, before theirs.
  explicit GpuDevice(tensorflow::OpKernelContext* ctx)
      : stream_(ctx->op_device_context()
                    ->stream()
                    ->platform_specific_handle()
                    .stream),
        allocate_([ctx, workspace = tensorflow::Tensor()](
                      std::size_t bytes) mutable -> void* {
          const auto size = static_cast<std::int64_t>(bytes);
          workspace = tensorflow::Tensor();  // not both at once
          const bool is_allocated =
              ctx->allocate_temp(tensorflow::DT_INT8, {size}, &workspace).ok();
          return is_allocated ? workspace.data() : nullptr;
        }) {}
  // Not longer than the context.
  explicit GpuDevice(GpuCallContext& call)
      : stream_(call.stream), allocate_([&call](std::size_t bytes) {
          return call.scratch.Allocate(bytes, alignof(double)).value_or(nullptr);
        }) {}

  void* stream() const { return stream_; }

  // Calls launch(workspace); the workspace is null where `bytes` is 0.
  template <class Launch>
  Status WithWorkspace(std::size_t bytes, const Launch& launch) const {
    void* const workspace = bytes > 0 ? allocate_(bytes) : nullptr;
    if (bytes > 0 && workspace == nullptr) {
      return {StatusCode::kOutOfMemory, "no device memory for the workspace"};
    }
    return launch(workspace);
  }

  Status SetZero(float* number) const {
    return FromCuda(cudaMemsetAsync(number, 0, sizeof *number, cuda_stream()));
  }
  Status Copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return {};
    return FromCuda(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
  }

 private:
  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream_); }

  static Status FromCuda(cudaError_t error) {
    if (error == cudaSuccess) return {};
    return {StatusCode::kInternal, cudaGetErrorString(error)};
  }

  void* stream_;
  std::function<void*(std::size_t bytes)> allocate_;
};

}  // namespace keras_mp

template <>
struct xla::ffi::CtxDecoding<keras_mp::GpuCallContext> {
  using Type = keras_mp::GpuCallContext;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    const auto stream =
        CtxDecoding<PlatformStream<cudaStream_t>>::Decode(api, ctx, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, ctx, diagnostic);
    if (!stream || !scratch) return std::nullopt;
    return Type{*stream, *std::move(scratch)};
  }
};

#endif  // KERAS_MP_TENSORFLOW_COMMON_GPU_DEVICE_H_
