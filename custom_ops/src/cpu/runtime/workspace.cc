#include "cpu/runtime/workspace.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>

#include "common/ceil_div.h"

namespace keras_mp {
namespace {

struct Buffer {
  void* data = nullptr;
  std::size_t size = 0;

  ~Buffer() { std::free(data); }
};

thread_local Buffer buffer;

}  // namespace

void* ThreadWorkspace(std::size_t bytes) {
  if (bytes > buffer.size) {
    // A huge page, where the system has them: small pages may lie anywhere in physical
    // memory, and overload some sets of the cache.
    constexpr std::size_t kHugePage = std::size_t{1} << 21;
    const std::size_t size = RoundUp(bytes, kHugePage);
    std::free(buffer.data);
    buffer.data = std::aligned_alloc(kHugePage, size);
    buffer.size = buffer.data ? size : 0;
#ifdef __linux__
    if (buffer.data) madvise(buffer.data, size, MADV_HUGEPAGE);
#endif
  }
  return buffer.data;
}

}  // namespace keras_mp
