// TensorFlow's stream of a GPU, and scratch memory for the work that an op puts on it.

#ifndef KERAS_MP_TENSORFLOW_COMMON_GPU_STREAM_H_
#define KERAS_MP_TENSORFLOW_COMMON_GPU_STREAM_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace keras_mp {

class GpuStream {
 public:
  explicit GpuStream(tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}

  void* get() const {
    return ctx_->op_device_context()->stream()->platform_specific_handle().stream;
  }

  // Calls launch(workspace, stream). The allocator returns the memory to other ops when the
  // launches are made. Their work is on the stream by then, before that of others.
  template <class Launch>
  Status WithWorkspace(std::size_t bytes, const Launch& launch) const {
    tensorflow::Tensor workspace;
    const auto size = static_cast<std::int64_t>(bytes);
    if (!ctx_->allocate_temp(tensorflow::DT_INT8, {size}, &workspace).ok()) {
      return {StatusCode::kOutOfMemory, "no device memory for the workspace"};
    }
    return launch(workspace.data(), get());
  }

 private:
  tensorflow::OpKernelContext* ctx_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_GPU_STREAM_H_
