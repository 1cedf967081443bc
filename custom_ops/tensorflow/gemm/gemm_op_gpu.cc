// The matrix product of KerasMp>Fp16Gemm on a GPU, by the kernels of gemm_cuda.h.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/gpu_device.h"
#include "gemm/gemm_op.h"
#include "keras_mp/gemm_cuda.h"
#include "tensorflow/core/platform/logging.h"

namespace keras_mp {
namespace {

struct Routes {
  CudaRoute first = CudaRoute::kOwn;  // the one that is tried first
  bool may_fall_back = false;
  std::string problem;  // with the choice
};

Routes ChosenRoutes() {
  const char* chosen = std::getenv("KERAS_MP_GEMM");
  const std::string name = chosen ? chosen : "auto";
  Routes routes;
  if (name != "auto" && name != "own" && name != "cublaslt") {
    routes.problem = absl::StrCat(
        "KERAS_MP_GEMM must be auto, own or cublaslt. Received: ", name);
  }
  if (name != "own") routes.first = CudaRoute::kCublasLt;
  routes.may_fall_back = name == "auto";
  return routes;
}

Status MultiplyOn(CudaRoute route, const GpuDevice& device, const Gemm& gemm) {
  const std::size_t bytes = WorkspaceBytes(gemm, route);
  return device.WithWorkspace(bytes, [&](void* workspace) {
    return GemmCuda(gemm, route, workspace, bytes, device.stream());
  });
}

}  // namespace

Status MultiplyOnGpu(const GpuDevice& device, const Gemm& gemm) {
  static const auto* const routes = new Routes(ChosenRoutes());
  if (!routes->problem.empty()) {
    return {StatusCode::kInvalidArgument, routes->problem.c_str()};
  }
  // Where cuBLASLt is missing or has no algorithm, the kernel of this library computes.
  const Status status = MultiplyOn(routes->first, device, gemm);
  if (status.code != StatusCode::kUnimplemented || !routes->may_fall_back) return status;
  LOG_FIRST_N(WARNING, 1) << "keras_mp: the own kernel computes what cuBLASLt did not: "
                          << status.message;
  return MultiplyOn(CudaRoute::kOwn, device, gemm);
}

}  // namespace keras_mp
