// Registers the XLA FFI handlers of the update step for a CUDA device.

#include <cstddef>
#include <optional>
#include <utility>

#include "update/cuda_backend.h"
#include "update/xla_ffi_handlers.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

struct CudaContext {
  cudaStream_t stream;
  ffi::ScratchAllocator scratch;

  CudaBackend backend() {
    return CudaBackend(stream, [this](std::size_t bytes) {
      return scratch.Allocate(bytes, alignof(double)).value_or(nullptr);
    });
  }
};

}  // namespace
}  // namespace keras_mp

template <>
struct xla::ffi::CtxDecoding<keras_mp::CudaContext> {
  using Type = keras_mp::CudaContext;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    const auto stream =
        CtxDecoding<PlatformStream<cudaStream_t>>::Decode(api, ctx, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, ctx, diagnostic);
    if (!stream || !scratch) return std::nullopt;
    return Type{*stream, *std::move(scratch)};
  }
};

namespace keras_mp {
namespace {

KERAS_MP_REGISTER_HANDLERS("CUDA", CudaContext);

}  // namespace
}  // namespace keras_mp
