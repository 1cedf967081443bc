// The plan of a product on the route kOwn: which kernel computes it, with which grid.
// Plain C++.

#ifndef KERAS_MP_SRC_CUDA_GEMM_PLAN_H_
#define KERAS_MP_SRC_CUDA_GEMM_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "cuda/gemm/problem.h"
#include "keras_mp/gemm.h"

namespace keras_mp::cuda {

struct Device {
  int multiprocessors = 0;
  int capability = 0;  // 10 * major + minor
};

// The tile shapes of cuda/gemm/shapes.h.
enum class TileKind { kLarge, kMedium, kSmall, kNarrow, kFlat };

struct Plan {
  TileKind tile = TileKind::kSmall;
  int splits = 1;
  int k_per_split = 0;
  std::size_t workspace = 0;  // for the sums of the splits
};

// The maximum of m, n and k, as the kernels index rows, columns and the inner dimension
// by int.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;

// The maximum of Plan::workspace.
constexpr std::size_t kMaxWorkspace = std::size_t{64} << 20;

// The maximum size of a grid in z.
constexpr std::int64_t kMaxGridBatch = 65535;

// Chooses the tile and the splits that are fastest by the model in cuda/gemm/plan.cc. The
// choice depends only on sizes, device and `workspace_limit`, so that a product has the
// same bits each time.
Status MakePlan(const Gemm& gemm, const Device& device, std::size_t workspace_limit,
                Plan* plan);

// Makes the argument of the kernels. `workspace` is null or has plan.workspace bytes.
Problem MakeProblem(const Gemm& gemm, const Plan& plan, void* workspace);

// The same problem without its first `first` products.
Problem SkipProducts(const Problem& problem, std::int64_t first);

// Largest of 16, 8, 4 and 2 that divides the address, the length of a row, and every
// distance, in bytes.
int MatrixAlignment(const void* pointer, std::int64_t columns, std::int64_t ld,
                    std::int64_t stride, std::int64_t batch);

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_PLAN_H_
