#include "cuda/gemm/cublaslt_library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>

namespace keras_mp::cuda::cublaslt {
namespace {

// Opens the library that the process has already loaded, else the newest that the loader
// finds.
void* Open() {
  for (const int load : {RTLD_NOLOAD, 0}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL | load)) return handle;
    }
  }
  return nullptr;
}

// Fills in the functions. Returns null, or the reason why the library cannot be used.
const char* Load(Library* library) {
  void* const handle = Open();
  if (handle == nullptr) {
    return "cuBLASLt was not found: neither libcublasLt.so.13 nor libcublasLt.so.12";
  }
  bool has_all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    has_all = has_all && function != nullptr;
  };
#define KERAS_MP_FIND(name) find(library->name, #name);
  KERAS_MP_CUBLASLT_FUNCTIONS(KERAS_MP_FIND)
#undef KERAS_MP_FIND
  if (!has_all) return "the cuBLASLt that was found lacks a function";
  const std::size_t major = library->cublasLtGetVersion() / 10000;
  if (major != 12 && major != 13) return "cuBLASLt is neither version 12 nor 13";
  return nullptr;
}

}  // namespace

const Library* Find(const char** why) {
  static std::atomic<const Library*> found{nullptr};
  if (const Library* library = found) return library;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const Library* library = found) return library;
  auto library = std::make_unique<Library>();
  *why = Load(library.get());
  if (*why == nullptr) found = library.release();
  return found;
}

const Library& Loaded() {
  const char* why = nullptr;
  return *Find(&why);
}

}  // namespace keras_mp::cuda::cublaslt
