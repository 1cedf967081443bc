// Tests when the cuBLASLt route returns kUnimplemented, so that another route may compute
// the product, with a fake library whose failures the test sets. Needs no GPU: the only
// function of CUDA that is called, cudaGetDevice, is defined here.
//
//   gemm_cublaslt_test [path of fake_cublaslt, whose soname is libcublasLt.so.13]

#include "cuda/gemm/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

namespace keras_mp::cuda {
namespace {

int failures = 0;

void Expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::printf("%s\n", what.c_str());
}

// A product of a new size, whose algorithms are not in the cache.
Gemm Next() {
  static std::int64_t size = 0;
  static std::uint16_t numbers[1] = {};
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = ++size;
  gemm.a = gemm.b = gemm.c = numbers;
  return gemm;
}

StatusCode Run(const Gemm& gemm) {
  return CublasLtProduct(gemm, 0, 0, nullptr, nullptr, 0, nullptr).code;
}

class Fake {
 public:
  explicit Fake(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {}

  bool ok() const { return handle_ != nullptr; }
  cublasStatus_t& create() { return Find<cublasStatus_t>("fake_create"); }
  cublasStatus_t& heuristic() { return Find<cublasStatus_t>("fake_heuristic"); }
  cublasStatus_t& product() { return Find<cublasStatus_t>("fake_product"); }
  int& products() { return Find<int>("fake_products"); }

 private:
  template <class T>
  T& Find(const char* name) {
    return *static_cast<T*>(dlsym(handle_, name));
  }

  void* handle_;
};

int Main(const char* path) {
  const char* why = nullptr;
  if (CublasLtIsAvailable(&why)) {
    std::printf("skipped: this machine has a cuBLASLt of its own\n");
    return 77;
  }
  Expect(why != nullptr && *why != '\0', "the reason is missing");
  Expect(Run(Next()) == StatusCode::kUnimplemented,
         "no library: another route may do it");

  // TensorFlow loads its library late, too: with its first GPU.
  Fake fake(path);
  Expect(fake.ok(), "the fake cannot be loaded");
  if (!fake.ok()) return EXIT_FAILURE;
  why = nullptr;
  const bool found = CublasLtIsAvailable(&why);
  Expect(found, "a library that came later is not found");
  if (!found) return EXIT_FAILURE;

  fake.create() = CUBLAS_STATUS_NOT_INITIALIZED;
  Expect(Run(Next()) == StatusCode::kUnimplemented, "no handle: another route may do it");
  fake.create() = CUBLAS_STATUS_SUCCESS;
  Expect(Run(Next()) == StatusCode::kOk && fake.products() == 1, "not run");

  for (const cublasStatus_t status :
       {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE,
        CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_INTERNAL_ERROR}) {
    fake.heuristic() = status;
    const Gemm gemm = Next();
    Expect(Run(gemm) == StatusCode::kUnimplemented,
           "heuristic " + std::to_string(status) + ": another route may do it");
    fake.heuristic() = CUBLAS_STATUS_SUCCESS;
  }
  Expect(fake.products() == 1, "a product was run without an algorithm");

  const auto product = [&](cublasStatus_t status) {
    fake.product() = status;
    return Run(Next());
  };
  Expect(product(CUBLAS_STATUS_NOT_SUPPORTED) == StatusCode::kUnimplemented, "refused");
  Expect(product(CUBLAS_STATUS_ARCH_MISMATCH) == StatusCode::kUnimplemented, "too old");
  // The stream may be broken; running another kernel would hide that.
  Expect(product(CUBLAS_STATUS_EXECUTION_FAILED) == StatusCode::kInternal, "failed");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace keras_mp::cuda

int main(int, char** arguments) { return keras_mp::cuda::Main(arguments[1]); }
