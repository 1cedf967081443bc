// Products by cuBLASLt, found at run time with dlopen.
//
// The library works on column-major matrices. A row-major matrix is the transpose of the
// column-major one in the same memory, so that C^T = op(B)^T op(A)^T is asked for: B is
// the library's A, and a bias along the rows of C^T is one along the columns of C.

#include "cuda/gemm/cublaslt.h"

#if __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/alignment.h"

namespace keras_mp::cuda {
namespace {

constexpr int kMaxChoices = 8;
constexpr std::size_t kMaxCached = 4096;  // problems; then the cache starts anew

// The functions that are used, under their own names.
struct Library {
  const char* why = nullptr;  // null: all were found

#define KERAS_MP_CUBLASLT(name) decltype(&::name) name = nullptr
  KERAS_MP_CUBLASLT(cublasLtGetVersion);
  KERAS_MP_CUBLASLT(cublasLtCreate);
  KERAS_MP_CUBLASLT(cublasLtMatmul);
  KERAS_MP_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
  KERAS_MP_CUBLASLT(cublasLtMatmulDescCreate);
  KERAS_MP_CUBLASLT(cublasLtMatmulDescDestroy);
  KERAS_MP_CUBLASLT(cublasLtMatmulDescSetAttribute);
  KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceCreate);
  KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceDestroy);
  KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
  KERAS_MP_CUBLASLT(cublasLtMatrixLayoutCreate);
  KERAS_MP_CUBLASLT(cublasLtMatrixLayoutDestroy);
  KERAS_MP_CUBLASLT(cublasLtMatrixLayoutSetAttribute);
#undef KERAS_MP_CUBLASLT

  Library() {
    void* handle = Open();
    if (handle == nullptr) {
      why = "cuBLASLt was not found: neither libcublasLt.so.13 nor libcublasLt.so.12";
      return;
    }
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
      all = all && function != nullptr;
    };
#define KERAS_MP_CUBLASLT(name) find(name, #name)
    KERAS_MP_CUBLASLT(cublasLtGetVersion);
    KERAS_MP_CUBLASLT(cublasLtCreate);
    KERAS_MP_CUBLASLT(cublasLtMatmul);
    KERAS_MP_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
    KERAS_MP_CUBLASLT(cublasLtMatmulDescCreate);
    KERAS_MP_CUBLASLT(cublasLtMatmulDescDestroy);
    KERAS_MP_CUBLASLT(cublasLtMatmulDescSetAttribute);
    KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceCreate);
    KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceDestroy);
    KERAS_MP_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
    KERAS_MP_CUBLASLT(cublasLtMatrixLayoutCreate);
    KERAS_MP_CUBLASLT(cublasLtMatrixLayoutDestroy);
    KERAS_MP_CUBLASLT(cublasLtMatrixLayoutSetAttribute);
#undef KERAS_MP_CUBLASLT
    if (!all) {
      why = "the cuBLASLt that was found lacks a function";
      return;
    }
    const std::size_t major = cublasLtGetVersion() / 10000;
    if (major != 12 && major != 13) why = "cuBLASLt is neither version 12 nor 13";
  }

  // The one that the process has already, else the newest that the loader finds.
  static void* Open() {
    for (const int load : {RTLD_NOLOAD, 0}) {
      for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
        if (void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL | load)) return handle;
      }
    }
    return nullptr;
  }
};

// Returns the library, or null where there is none, and `why`. Only what was found is
// kept: TensorFlow may load its own later, with the first GPU. It lives until the process
// ends: a destructor could run after CUDA's own.
const Library* Find(const char** why) {
  static std::atomic<const Library*> found{nullptr};
  if (const Library* library = found) return library;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const Library* library = found) return library;
  auto library = std::make_unique<const Library>();
  *why = library->why;
  if (library->why == nullptr) found = library.release();
  return found;
}

// The library that was found.
const Library& Get() {
  const char* why = nullptr;
  return *Find(&why);
}

// Nothing was put on the stream yet, so that another route may do it.
Status Unprepared() {
  return {StatusCode::kUnimplemented, "cuBLASLt failed to prepare this product"};
}

cudaDataType_t TypeOf(DataType type) {
  switch (type) {
    case DataType::kHalf:
      return CUDA_R_16F;
    case DataType::kBfloat16:
      return CUDA_R_16BF;
    case DataType::kFloat:
      break;
  }
  return CUDA_R_32F;
}

// The library assumes 256 bytes where it is told nothing, and never needs more.
constexpr std::uint32_t kMostAlignment = 256;

struct Deleter {
  void operator()(cublasLtMatmulDescOpaque_t* p) const {
    Get().cublasLtMatmulDescDestroy(p);
  }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const {
    Get().cublasLtMatrixLayoutDestroy(p);
  }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const {
    Get().cublasLtMatmulPreferenceDestroy(p);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Deleter>;

using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

// A row-major matrix [rows, columns] as the library sees it; null on failure.
Layout MakeLayout(DataType type, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                  std::int64_t batch, std::int64_t stride) {
  const Library& lt = Get();
  cublasLtMatrixLayout_t raw = nullptr;
  if (lt.cublasLtMatrixLayoutCreate(&raw, TypeOf(type), static_cast<std::uint64_t>(columns),
                                    static_cast<std::uint64_t>(rows), ld) !=
      CUBLAS_STATUS_SUCCESS) {
    return nullptr;
  }
  Layout layout(raw);
  const std::int32_t count = static_cast<std::int32_t>(batch);
  if (lt.cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof count) != CUBLAS_STATUS_SUCCESS ||
      lt.cublasLtMatrixLayoutSetAttribute(
          raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) !=
          CUBLAS_STATUS_SUCCESS) {
    return nullptr;
  }
  return layout;
}

// What the library wants to know of a product.
struct Description {
  Owned<cublasLtMatmulDescOpaque_t> product;
  Layout a, b, c;  // of our A, B and C

  bool Make(const Gemm& g) {
    const Library& lt = Get();
    cublasLtMatmulDesc_t raw = nullptr;
    if (lt.cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
        CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    product.reset(raw);
    bool ok = true;
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      ok = ok && lt.cublasLtMatmulDescSetAttribute(raw, attribute, &value, sizeof value) ==
                     CUBLAS_STATUS_SUCCESS;
    };
    const auto operation = [](bool transpose) -> std::int32_t {
      return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(g.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(g.transpose_a));
    const std::int32_t mode = g.alpha == nullptr ? CUBLASLT_POINTER_MODE_HOST
                                                 : CUBLASLT_POINTER_MODE_DEVICE;
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, mode);
    if (g.bias != nullptr) {
      const std::uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    }
    a = MakeLayout(g.input, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda,
                   g.batch, g.stride_a);
    b = MakeLayout(g.input, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb,
                   g.batch, g.stride_b);
    c = MakeLayout(g.output, g.m, g.n, g.ldc, g.batch, g.stride_c);
    return ok && a != nullptr && b != nullptr && c != nullptr;
  }
};

using Choices = std::vector<cublasLtMatmulHeuristicResult_t>;

Status AskHeuristic(cublasLtHandle_t handle, const Gemm& g, const Description& d,
                    std::size_t workspace_limit, Choices* choices) {
  const Library& lt = Get();
  cublasLtMatmulPreference_t raw = nullptr;
  if (lt.cublasLtMatmulPreferenceCreate(&raw) != CUBLAS_STATUS_SUCCESS) return Unprepared();
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(raw);
  bool ok = true;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    ok = ok && lt.cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value,
                                                       sizeof value) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  const std::uint64_t workspace = workspace_limit;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // Parts of a sum are added in FP32 or not at all: the other schemes round each to C's
  // type.
  const std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(g.b, kMostAlignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(g.a, kMostAlignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(g.c, kMostAlignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(g.c, kMostAlignment));
  if (!ok) return Unprepared();

  std::array<cublasLtMatmulHeuristicResult_t, kMaxChoices> found = {};
  int count = 0;
  const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
      handle, d.product.get(), d.b.get(), d.a.get(), d.c.get(), d.c.get(),
      preference.get(), kMaxChoices, found.data(), &count);
  choices->clear();
  if (status == CUBLAS_STATUS_SUCCESS) {
    for (int i = 0; i < count; ++i) {
      const auto& choice = found[static_cast<std::size_t>(i)];
      if (choice.state == CUBLAS_STATUS_SUCCESS &&
          choice.workspaceSize <= workspace_limit) {
        choices->push_back(choice);
      }
    }
  } else if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
    return Unprepared();
  }
  return {};
}

// Everything that the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 22>;

Key KeyOf(int device, const Gemm& g, std::size_t workspace_limit) {
  return {device,
          g.m,
          g.n,
          g.k,
          g.transpose_a,
          g.transpose_b,
          static_cast<std::int64_t>(g.input),
          static_cast<std::int64_t>(g.output),
          g.lda,
          g.ldb,
          g.ldc,
          g.batch,
          g.stride_a,
          g.stride_b,
          g.stride_c,
          g.alpha != nullptr,
          g.bias != nullptr,
          g.bias == nullptr ? 0 : AlignmentOf(g.bias, kMostAlignment),
          AlignmentOf(g.a, kMostAlignment),
          AlignmentOf(g.b, kMostAlignment),
          AlignmentOf(g.c, kMostAlignment),
          static_cast<std::int64_t>(workspace_limit)};
}

// The handles, one a device, and the choices that were made.
class Cache {
 public:
  Status Find(const Gemm& gemm, const Description& description, std::size_t limit,
              cublasLtHandle_t* handle, Choices* choices) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return Unprepared();
    const Key key = KeyOf(device, gemm, limit);
    const std::lock_guard<std::mutex> lock(mutex_);
    cublasLtHandle_t& own = handles_[device];
    if (own == nullptr && Get().cublasLtCreate(&own) != CUBLAS_STATUS_SUCCESS) {
      own = nullptr;
      return Unprepared();
    }
    *handle = own;
    const auto found = choices_.find(key);
    if (found != choices_.end()) {
      *choices = found->second;
      return {};
    }
    const Status status = AskHeuristic(own, gemm, description, limit, choices);
    if (!status.ok()) return status;
    if (choices_.size() >= kMaxCached) choices_.clear();
    choices_.emplace(key, *choices);
    return {};
  }

 private:
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, Choices> choices_;
};

Cache& Algorithms() {
  static Cache* cache = new Cache;
  return *cache;
}

// All that a call needs; the algorithms of `limit` bytes or less.
Status Prepare(const Gemm& gemm, std::size_t limit, Description* description,
               cublasLtHandle_t* handle, Choices* choices) {
  const char* why = nullptr;
  if (!CublasLtIsAvailable(&why)) return {StatusCode::kUnimplemented, why};
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (std::max({gemm.m, gemm.n, gemm.k, gemm.batch}) > kMax) {
    return {StatusCode::kUnimplemented, "cuBLASLt takes sizes below 2^31"};
  }
  if (gemm.activation != Activation::kNone ||
      (gemm.bias != nullptr && gemm.bias_type != gemm.output)) {
    return {StatusCode::kUnimplemented, "cuBLASLt cannot fuse this bias or activation"};
  }
  if (!description->Make(gemm)) return Unprepared();
  return Algorithms().Find(gemm, *description, limit, handle, choices);
}

Status Prepare(const Gemm& gemm, std::size_t limit, int rank, Description* description,
               cublasLtHandle_t* handle, cublasLtMatmulHeuristicResult_t* choice) {
  Choices choices;
  const Status status = Prepare(gemm, limit, description, handle, &choices);
  if (!status.ok()) return status;
  if (rank < 0 || static_cast<std::size_t>(rank) >= choices.size()) {
    return {StatusCode::kUnimplemented, "cuBLASLt has no algorithm for this product"};
  }
  *choice = choices[static_cast<std::size_t>(rank)];
  return {};
}

}  // namespace

bool CublasLtIsAvailable(const char** why) { return Find(why) != nullptr; }

Status CublasLtChoices(const Gemm& gemm, std::size_t workspace_limit, int* count) {
  Description description;
  cublasLtHandle_t handle = nullptr;
  Choices choices;
  const Status status = Prepare(gemm, workspace_limit, &description, &handle, &choices);
  *count = static_cast<int>(choices.size());
  return status;
}

Status CublasLtWorkspace(const Gemm& gemm, std::size_t workspace_limit, int rank,
                         std::size_t* bytes) {
  Description description;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulHeuristicResult_t choice = {};
  const Status status =
      Prepare(gemm, workspace_limit, rank, &description, &handle, &choice);
  *bytes = choice.workspaceSize;
  return status;
}

Status CublasLtProduct(const Gemm& gemm, std::size_t workspace_limit, int rank,
                       const float* zero, void* workspace, std::size_t workspace_bytes,
                       cudaStream_t stream) {
  Description d;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulHeuristicResult_t choice = {};
  Status status = Prepare(gemm, workspace_limit, rank, &d, &handle, &choice);
  if (status.ok() && choice.workspaceSize > workspace_bytes) {
    status = Prepare(gemm, workspace_bytes, rank, &d, &handle, &choice);
  }
  if (!status.ok()) return status;

  const float host_one = 1.0f;
  const float host_zero = 0.0f;
  const bool on_device = gemm.alpha != nullptr;
  const cublasStatus_t result = Get().cublasLtMatmul(
      handle, d.product.get(), on_device ? gemm.alpha : &host_one, gemm.b, d.b.get(),
      gemm.a, d.a.get(), on_device ? zero : &host_zero, gemm.c, d.c.get(), gemm.c,
      d.c.get(), &choice.algo, workspace, workspace_bytes, stream);
  switch (result) {
    case CUBLAS_STATUS_SUCCESS:
      return {};
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return {StatusCode::kUnimplemented, "cuBLASLt refused this product"};
    default:
      return {StatusCode::kInternal, "cuBLASLt failed"};
  }
}

}  // namespace keras_mp::cuda

#else  // no cublasLt.h

namespace keras_mp::cuda {
namespace {

constexpr char kWhy[] = "built without cuBLASLt: cublasLt.h was not found at build time";

}  // namespace

bool CublasLtIsAvailable(const char** why) {
  *why = kWhy;
  return false;
}

Status CublasLtChoices(const Gemm&, std::size_t, int* count) {
  *count = 0;
  return {StatusCode::kUnimplemented, kWhy};
}

Status CublasLtWorkspace(const Gemm&, std::size_t, int, std::size_t* bytes) {
  *bytes = 0;
  return {StatusCode::kUnimplemented, kWhy};
}

Status CublasLtProduct(const Gemm&, std::size_t, int, const float*, void*, std::size_t,
                       cudaStream_t) {
  return {StatusCode::kUnimplemented, kWhy};
}

}  // namespace keras_mp::cuda

#endif
