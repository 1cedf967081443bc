// Registers the XLA FFI handlers of the update step for a CPU.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/synchronization/notification.h"
#include "update/cpu_backend.h"
#include "update/xla_ffi_handlers.h"

namespace keras_mp {
namespace {

namespace ffi = xla::ffi;

// A loop whose indices are handed out to threads one by one. A thread that starts when
// all are taken has nothing to do, so Wait() waits for the indices and not for the
// threads.
struct Loop {
  std::int64_t count;
  void* context;
  Parallel::Body body;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> done{0};
  // Not std::condition_variable: its wait() of GCC 12 is in no older libstdc++.
  absl::Notification all_done;

  void Work() {
    std::int64_t done_here = 0;
    for (std::int64_t i; (i = next++) < count; ++done_here) body(context, i);
    if (done_here == 0) return;
    if ((done += done_here) == count) all_done.Notify();
  }

  void Wait() {
    if (count > 0) all_done.WaitForNotification();
  }
};

// Adapts XLA's thread pool to the interface of the kernels.
Parallel Threads(ffi::ThreadPool& pool) {
  const auto run = [](void* state, std::int64_t count, void* context,
                      Parallel::Body body) {
    auto& pool = *static_cast<ffi::ThreadPool*>(state);
    const auto loop = std::make_shared<Loop>();
    loop->count = count;
    loop->context = context;
    loop->body = body;
    for (std::int64_t i = 1; i < std::min(count, pool.num_threads()); ++i) {
      pool.Schedule([loop] { loop->Work(); });
    }
    loop->Work();
    loop->Wait();
  };
  const auto threads = std::max<std::int64_t>(1, pool.num_threads());
  return {static_cast<int>(threads), &pool, run};
}

struct HostContext {
  ffi::ThreadPool pool;

  CpuBackend backend() { return CpuBackend(Threads(pool)); }
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
