// The product of keras_mp/gemm_cuda.h, round(activation(alpha * op(A) * op(B) + bias)):
// its checks and its two routes, the tensor-core kernels of this folder and cuBLASLt.
// The layout of A, B and C is that of keras_mp/gemm.h.
//
// Build and test, with a GPU:
//   cmake -S custom_ops -B build/cuda -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=ON &&
//   cmake --build build/cuda --target gemm_cuda_test && build/cuda/gemm_cuda_test
// The kernels also run without a GPU: their sources in gemm_cuda_emulated_test, but for
// ReluKernel, and their PTX in tests/cuda_ptx.

#include "keras_mp/gemm_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/common/error_text.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/launch.h"
#include "cuda/gemm/relu.cuh"
#include "cuda/gemm/round.cuh"

namespace keras_mp {
namespace cuda {
namespace {

// cuBLASLt reads beta, always 0 here, from where it reads alpha.
__device__ const float kZero = 0.0f;

// The workspace of cuBLASLt in bytes: NVIDIA recommends 32 MiB on Hopper.
constexpr std::size_t kCublasLtWorkspace = std::size_t{32} << 20;

Status Internal(const char* message) { return {StatusCode::kInternal, message}; }

Status FromCuda(cudaError_t error) {
  return error == cudaSuccess ? Status() : Internal(cudaGetErrorString(error));
}

Status CurrentDevice(Device* device) {
  int id = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->multiprocessors,
                                   cudaDevAttrMultiProcessorCount, id);
  }
  device->capability = 10 * major + minor;
  return FromCuda(error);
}

bool IsEmpty(const Gemm& g) { return g.m == 0 || g.n == 0 || g.batch == 0; }

Status Check(const Gemm& gemm) {
  if (gemm.input == DataType::kFloat) {
    return {StatusCode::kInvalidArgument, "the inputs must be 16-bit numbers"};
  }
  if (gemm.upstream != nullptr) {
    return {StatusCode::kInvalidArgument, "there must be no upstream gradient"};
  }
  return Validate(gemm);
}

// Folds the batch into the rows where that is possible.
Gemm Simplify(const Gemm& gemm) {
  const Gemm folded = FoldBatch(gemm);
  return folded.m <= kMaxSize ? folded : gemm;
}

// Elements of B, and of the gaps between its rows and matrices.
std::int64_t ExtentOfB(const Gemm& g) {
  const std::int64_t rows = g.transpose_b ? g.n : g.k;
  const std::int64_t columns = g.transpose_b ? g.k : g.n;
  return (g.batch - 1) * g.stride_b + (rows - 1) * g.ldb + columns;
}

// Bytes at the beginning of the workspace for the 16-bit copy of an FP32 matrix B.
std::size_t RoundedBytes(const Gemm& g) {
  if (!g.rounds_b) return 0;
  return (static_cast<std::size_t>(ExtentOfB(g)) * sizeof(Bits16) + 255) / 256 * 256;
}

// The product with the 16-bit copy of B.
Gemm WithRoundedB(const Gemm& gemm, const void* rounded) {
  Gemm product = gemm;
  product.rounds_b = false;
  product.b = rounded;
  return product;
}

Status RoundB(const Gemm& gemm, void* rounded, cudaStream_t stream) {
  const auto* from = static_cast<const float*>(gemm.b);
  auto* to = static_cast<Bits16*>(rounded);
  Index count = ExtentOfB(gemm);
  const auto kernel =
      gemm.input == DataType::kHalf ? RoundKernel<Half> : RoundKernel<Bfloat16>;
  const Index blocks =
      std::min<Index>((count + kRoundThreads - 1) / kRoundThreads, 65535);
  void* arguments[] = {&from, &to, &count};
  return FromCuda(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                   dim3(static_cast<unsigned>(blocks)),
                                   dim3(kRoundThreads), arguments, 0, stream));
}

// Adds up the parts of a split sum, p.splits of them (0 is allowed), and applies the
// epilogue.
Status Reduce(const Gemm& gemm, const Problem& p, cudaStream_t stream) {
  const Kernel kernel = gemm.input == DataType::kHalf ? ReduceKernel<Half>
                                                      : ReduceKernel<Bfloat16>;
  const dim3 grid(static_cast<unsigned>((gemm.n + 63) / 64),
                  static_cast<unsigned>(std::min<std::int64_t>((gemm.m + 7) / 8, 65535)));
  const Launch launch = {p, gemm.batch, TileKind::kSmall, false, false, stream};
  return FromCuda(LaunchAll(launch, kernel, grid, dim3(32, 8), 0));
}

// Applies the epilogue to the FP32 sums [batch][m][n] in `sums`, or to zeros where it is
// null.
Status FinishSums(const Gemm& gemm, void* sums, cudaStream_t stream) {
  if (std::max(gemm.m, gemm.n) > kMaxSize) {
    return {StatusCode::kUnimplemented, "the CUDA epilogue takes m and n up to 2^30"};
  }
  Plan plan;
  plan.splits = sums == nullptr ? 0 : 1;
  return Reduce(gemm, MakeProblem(gemm, plan, sums), stream);
}

Status ComputeOwn(const Gemm& gemm, void* workspace, std::size_t workspace_bytes,
                  cudaStream_t stream) {
  Device device;
  Status status = CurrentDevice(&device);
  if (!status.ok()) return status;
  Plan plan;
  status = MakePlan(gemm, device, workspace == nullptr ? 0 : workspace_bytes, &plan);
  if (!status.ok()) return status;

  const Problem problem = MakeProblem(gemm, plan, workspace);
  const Launch launch = {problem,           gemm.batch, plan.tile, !gemm.transpose_a,
                         gemm.transpose_b, stream};
  if (device.capability < 80) {
    status = FromCuda(LaunchWmma(launch));
  } else if (gemm.input == DataType::kHalf) {
    status = FromCuda(LaunchMmaHalf(launch));
  } else {
    status = FromCuda(LaunchMmaBfloat16(launch));
  }
  if (!status.ok() || plan.splits == 1) return status;
  return Reduce(gemm, problem, stream);
}

// How a product is computed with cuBLASLt. Its epilogues are used only where they do
// exactly what gemm.h defines: its GELU is the approximation with tanh, its ReLU of NaN
// is not specified, and its bias must have the type of C.
struct CublasLtSteps {
  Gemm product;             // computed by cuBLASLt
  std::size_t sums = 0;     // bytes of FP32 sums that FinishSums() then takes, or 0
  bool relu_after = false;  // exact after the rounding, which keeps the sign
};

CublasLtSteps StepsOf(const Gemm& gemm) {
  CublasLtSteps steps;
  steps.product = gemm;
  steps.product.activation = Activation::kNone;
  const bool relu = gemm.activation == Activation::kRelu;
  const bool fusable =
      gemm.bias == nullptr || (gemm.bias_type == gemm.output &&
                               reinterpret_cast<std::uintptr_t>(gemm.bias) % 16 == 0);
  if (fusable && (relu || gemm.activation == Activation::kNone)) {
    steps.relu_after = relu;
    return steps;
  }
  steps.product.bias = nullptr;
  steps.product.alpha = nullptr;
  steps.product.output = DataType::kFloat;
  steps.product.ldc = gemm.n;
  steps.product.stride_c = gemm.m * gemm.n;
  // The workspace of cuBLASLt follows the sums, aligned to 256 bytes.
  steps.sums = static_cast<std::size_t>(gemm.batch * gemm.m * gemm.n) * 4;
  steps.sums = (steps.sums + 255) / 256 * 256;
  return steps;
}

template <class Bits>
Status ReluAs(const Gemm& gemm, Bits infinity, cudaStream_t stream) {
  const Problem problem = MakeProblem(gemm, Plan(), nullptr);
  const dim3 grid(static_cast<unsigned>((gemm.n + 31) / 32),
                  static_cast<unsigned>(std::min<std::int64_t>((gemm.m + 7) / 8, 65535)));
  for (std::int64_t first = 0; first < gemm.batch; first += kMaxGridBatch) {
    Problem p = SkipProducts(problem, first);
    dim3 part = grid;
    part.z = static_cast<unsigned>(std::min(kMaxGridBatch, gemm.batch - first));
    void* arguments[] = {&p, &infinity};
    const Status status = FromCuda(
        cudaLaunchKernel(reinterpret_cast<const void*>(ReluKernel<Bits>), part,
                         dim3(32, 8), arguments, 0, stream));
    if (!status.ok()) return status;
  }
  return {};
}

Status ReluInPlace(const Gemm& gemm, cudaStream_t stream) {
  switch (gemm.output) {
    case DataType::kHalf:
      return ReluAs<std::uint16_t>(gemm, 0x7c00, stream);
    case DataType::kBfloat16:
      return ReluAs<std::uint16_t>(gemm, 0x7f80, stream);
    case DataType::kFloat:
      break;
  }
  return ReluAs<std::uint32_t>(gemm, 0x7f800000, stream);
}

Status ComputeCublasLt(const Gemm& gemm, void* workspace, std::size_t workspace_bytes,
                       cudaStream_t stream) {
  if (std::max(gemm.m, gemm.n) > kMaxSize) {
    return {StatusCode::kUnimplemented, "the CUDA epilogue takes m and n up to 2^30"};
  }
  CublasLtSteps steps = StepsOf(gemm);
  if (workspace == nullptr) workspace_bytes = 0;
  if (workspace_bytes < steps.sums) {
    return {StatusCode::kInvalidArgument, "the workspace is below WorkspaceBytes()"};
  }
  char* const memory = static_cast<char*>(workspace);
  if (steps.sums > 0) steps.product.c = memory;
  void* zero = nullptr;
  if (cudaGetSymbolAddress(&zero, kZero) != cudaSuccess) {
    return Internal("CUDA did not load this library's code");
  }
  Status status = CublasLtProduct(
      steps.product, kCublasLtWorkspace, 0, static_cast<const float*>(zero),
      workspace == nullptr ? nullptr : memory + steps.sums, workspace_bytes - steps.sums,
      stream);
  if (status.ok() && steps.sums > 0) status = FinishSums(gemm, workspace, stream);
  if (status.ok() && steps.relu_after) status = ReluInPlace(gemm, stream);
  return status;
}

bool HasDevice(const char** why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    *why = ErrorText(error);
  } else if (count == 0) {
    *why = "no CUDA device";
  }
  return *why == nullptr;
}

bool OwnIsAvailable(const char** why) {
  Device device;
  const Status status = CurrentDevice(&device);
  if (!status.ok()) {
    *why = status.message;
  } else if (device.capability < 70) {
    *why = "the device has no tensor cores: its compute capability is below 7.0";
  } else {
    // Fails where the build has no code for this device.
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(
        &attributes, reinterpret_cast<const void*>(ReduceKernel<Half>));
    if (error != cudaSuccess) *why = ErrorText(error);
  }
  return *why == nullptr;
}

}  // namespace
}  // namespace cuda

const char* Name(CudaRoute route) {
  switch (route) {
    case CudaRoute::kOwn:
      return "own";
    case CudaRoute::kCublasLt:
      break;
  }
  return "cublaslt";
}

bool IsAvailable(CudaRoute route, const char** why) {
  const char* reason = nullptr;
  // Both routes need the kernels of the epilogue.
  const bool available =
      cuda::HasDevice(&reason) && cuda::OwnIsAvailable(&reason) &&
      (route == CudaRoute::kOwn || cuda::CublasLtIsAvailable(&reason));
  if (why != nullptr) *why = available ? "" : reason;
  return available;
}

std::size_t WorkspaceBytes(const Gemm& gemm, CudaRoute route) {
  if (!cuda::Check(gemm).ok() || cuda::IsEmpty(gemm) || gemm.k == 0) return 0;
  // A copy of B is aligned to 256 bytes, as null is.
  const std::size_t rounded = cuda::RoundedBytes(gemm);
  const Gemm simple =
      cuda::Simplify(gemm.rounds_b ? cuda::WithRoundedB(gemm, nullptr) : gemm);
  if (route == CudaRoute::kOwn) {
    cuda::Device device;
    cuda::Plan plan;
    const bool ok = cuda::CurrentDevice(&device).ok() &&
                    cuda::MakePlan(simple, device, cuda::kMaxWorkspace, &plan).ok();
    return rounded + (ok ? plan.workspace : 0);
  }
  cuda::CublasLtSteps steps = cuda::StepsOf(simple);
  if (steps.sums > 0) steps.product.c = nullptr;  // in the workspace, as well aligned
  std::size_t bytes = 0;
  const Status status =
      cuda::CublasLtWorkspaceBytes(steps.product, cuda::kCublasLtWorkspace, 0, &bytes);
  return rounded + steps.sums + (status.ok() ? bytes : 0);
}

Status GemmCuda(const Gemm& gemm, CudaRoute route, void* workspace,
                std::size_t workspace_bytes, void* stream) {
  const Status status = cuda::Check(gemm);
  if (!status.ok() || cuda::IsEmpty(gemm)) return status;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (gemm.rounds_b && gemm.k > 0) {
    const std::size_t bytes = cuda::RoundedBytes(gemm);
    if (workspace == nullptr || workspace_bytes < bytes) {
      return {StatusCode::kInvalidArgument, "the workspace is below WorkspaceBytes()"};
    }
    const Status rounded = cuda::RoundB(gemm, workspace, queue);
    if (!rounded.ok()) return rounded;
    return GemmCuda(cuda::WithRoundedB(gemm, workspace), route,
                    static_cast<char*>(workspace) + bytes, workspace_bytes - bytes,
                    stream);
  }
  const Gemm simple = cuda::Simplify(gemm);
  if (simple.k == 0) return cuda::FinishSums(simple, nullptr, queue);
  return route == CudaRoute::kOwn
             ? cuda::ComputeOwn(simple, workspace, workspace_bytes, queue)
             : cuda::ComputeCublasLt(simple, workspace, workspace_bytes, queue);
}

}  // namespace keras_mp
