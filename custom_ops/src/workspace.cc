#include "workspace.h"

#include <cstdlib>

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
    constexpr std::size_t kPage = 4096;
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    std::free(buffer.data);
    buffer.data = std::aligned_alloc(kPage, size);
    buffer.size = buffer.data ? size : 0;
  }
  return buffer.data;
}

}  // namespace keras_mp
