// Registers the XLA FFI handlers of the update step for a CPU.

#include <optional>
#include <utility>

#include "common/cpu_device.h"
#include "update/cpu_backend.h"
#include "update/xla_ffi_handlers.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

struct HostContext {
  ffi::ThreadPool pool;

  CpuBackend backend() { return CpuBackend(XlaThreads(pool)); }
};

}  // namespace
}  // namespace keras_mp

template <>
struct xla::ffi::CtxDecoding<keras_mp::HostContext> {
  using Type = keras_mp::HostContext;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    auto pool = CtxDecoding<ThreadPool>::Decode(api, ctx, diagnostic);
    if (!pool) return std::nullopt;
    return Type{*std::move(pool)};
  }
};

namespace keras_mp {
namespace {

KERAS_MP_REGISTER_HANDLERS("Host", HostContext);

}  // namespace
}  // namespace keras_mp
