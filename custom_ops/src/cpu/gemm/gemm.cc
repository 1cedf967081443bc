// The driver of the GEMM on a CPU: chooses the order of the operands, cuts C into tiles
// and runs the kernel of the instruction set (cpu/gemm/gemm_kernel_simd.h) on each, in
// parallel.
//
//   C = round(activation(alpha * op(A) * op(B) + bias))
//
// Matrices are row-major, with the strides of keras_mp/gemm.h.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#include "keras_mp/gemm_cpu.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/ceil_div.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/kernels.h"
#include "cpu/runtime/partial_sums.h"
#include "cpu/runtime/workspace.h"

namespace keras_mp {
namespace {

// Whether op(A) op(B) has so few rows that packing B does not pay.
bool IsSkinny(std::int64_t m, bool transpose_b, const Blocking& blocking) {
  return m <= (transpose_b ? blocking.skinny_rows_column_major_b
                           : blocking.skinny_rows_row_major_b);
}

// Whether to compute C^T = op(B)^T op(A)^T instead.
bool IsBetterSwapped(const Gemm& g, const Blocking& blocking) {
  if (g.upstream != nullptr) return false;  // the sums are over rows of the caller's C
  const bool skinny = IsSkinny(g.m, g.transpose_b, blocking);
  const bool skinny_transposed = IsSkinny(g.n, !g.transpose_a, blocking);
  if (skinny || skinny_transposed) return skinny_transposed && (!skinny || g.n < g.m);
  // Packing reads contiguous rows fast and strided columns slowly: the larger matrix
  // takes the side where it is read contiguously.
  if (g.transpose_a && g.transpose_b) return true;
  if (g.transpose_a) return g.n < g.m;
  return g.transpose_b && g.m < g.n;
}

Product ProductOf(const Gemm& g, const Blocking& blocking) {
  const DataType b_type = g.rounds_b ? DataType::kFloat : g.input;
  Product product;
  product.m = g.m;
  product.n = g.n;
  product.k = g.k;
  product.a = {g.a, g.input, g.lda, 1};
  product.b = {g.b, b_type, g.ldb, 1};
  if (g.transpose_a) product.a = product.a.Transposed();
  if (g.transpose_b) product.b = product.b.Transposed();
  product.c = g.c;
  product.c_row = g.ldc;
  product.swapped = false;
  product.output = g.output;
  // An empty sum is 0, not 0 * alpha.
  product.alpha = g.alpha && g.k > 0 ? *g.alpha : 1.0f;
  product.bias = g.bias;
  product.bias_type = g.bias_type;
  product.activation = g.activation;
  product.upstream = g.upstream;
  product.upstream_type = g.upstream_type;
  product.partial_sums = nullptr;
  if (IsBetterSwapped(g, blocking)) {
    std::swap(product.m, product.n);
    std::swap(product.a, product.b);
    product.a = product.a.Transposed();
    product.b = product.b.Transposed();
    product.swapped = true;
  }
  return product;
}

// How many threads are worth waking: each should have kWorkOfAThread multiply-adds,
// which take tens of microseconds.
std::int64_t ThreadsFor(const Gemm& gemm, int threads) {
  constexpr double kWorkOfAThread = 2e6;
  const double work = 1.0 * gemm.m * gemm.n * gemm.k * gemm.batch;
  return std::max(1.0, std::min<double>(threads, work / kWorkOfAThread));
}

// The tiles of a product that a number of threads share.
struct Grid {
  bool skinny;
  std::int64_t rows, columns;  // of a tile
  std::int64_t row_tiles, column_tiles;

  Grid(const Product& product, const GemmKernel& kernel, std::int64_t threads) {
    const Blocking& blocking = kernel.blocking;
    skinny = IsSkinny(product.m, product.b.row == 1, blocking);
    if (skinny) {
      rows = product.m;
      row_tiles = 1;
      const std::int64_t share = RoundUp(CeilDiv(product.n, threads), kernel.panel);
      columns = std::min(share, blocking.skinny_max_columns);
      column_tiles = CeilDiv(product.n, columns);
      return;
    }
    // Tiles of equal size, in a row a multiple of the number of threads.
    column_tiles = CeilDiv(product.n, blocking.max_columns);
    if (product.m <= blocking.max_rows) column_tiles = RoundUp(column_tiles, threads);
    columns = std::min(RoundUp(CeilDiv(product.n, column_tiles), kernel.panel),
                       blocking.max_columns);
    column_tiles = CeilDiv(product.n, columns);
    row_tiles = CeilDiv(product.m, blocking.max_rows);
    constexpr std::int64_t kTilesPerThread = 2, kFewestRows = 96;
    const std::int64_t wanted = CeilDiv(kTilesPerThread * threads, column_tiles);
    const std::int64_t most = std::max<std::int64_t>(1, product.m / kFewestRows);
    row_tiles = std::max(row_tiles, std::min(wanted, most));
    const std::int64_t even = RoundUp(row_tiles, threads);
    if (column_tiles % threads != 0 && even <= most) row_tiles = even;
    rows = CeilDiv(product.m, row_tiles);
    // The sum of some rows is the work of one task.
    if (product.upstream != nullptr) rows = RoundUp(rows, kRowsPerSum);
    row_tiles = CeilDiv(product.m, rows);
  }
};

// The partial sums of a column of one product.
std::int64_t SumsOf(const Gemm& gemm) {
  return gemm.upstream == nullptr ? 0 : CeilDiv(gemm.m, kRowsPerSum);
}

// One call: tasks are the tiles of all products of the batch.
struct Job {
  const Gemm& gemm;
  const Product product;
  const GemmKernel& kernel;
  const Grid grid;
  PartialSums sums;  // of a gradient, for all products of the batch
  std::atomic<bool> out_of_memory{false};

  void Run(std::int64_t task) {
    void* workspace = ThreadWorkspace(kernel.workspace_bytes);
    if (workspace == nullptr) {
      out_of_memory = true;
      return;
    }
    const std::int64_t tiles = grid.row_tiles * grid.column_tiles;
    const std::int64_t index = task / tiles;
    const std::int64_t i = task % tiles / grid.column_tiles * grid.rows;
    const std::int64_t j = task % grid.column_tiles * grid.columns;
    Product one = product;
    std::int64_t a = gemm.stride_a, b = gemm.stride_b;
    if (product.swapped) std::swap(a, b);
    one.a = one.a.Moved(index * a);
    one.b = one.b.Moved(index * b);
    one.c = static_cast<char*>(one.c) + index * gemm.stride_c * SizeOf(one.output);
    if (one.upstream != nullptr) {
      one.upstream = static_cast<const char*>(one.upstream) +
                     index * gemm.stride_c * SizeOf(one.upstream_type);
      one.partial_sums = sums[index * SumsOf(gemm)];
    }
    const Tile tile = {i, std::min(grid.rows, one.m - i), j,
                       std::min(grid.columns, one.n - j)};
    const auto compute = grid.skinny ? kernel.skinny_tile : kernel.tile;
    compute(one, tile, kernel.blocking, workspace);
  }
};

// to[j] += the sum of `parts` rows of partial sums, a few columns at a time.
void AddUp(PartialSums& sums, std::int64_t parts, std::int64_t columns, float* to) {
  constexpr std::int64_t kColumns = 64;
  for (std::int64_t first = 0; first < columns; first += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - first);
    double totals[kColumns] = {};
    for (std::int64_t i = 0; i < parts; ++i) {
      const float* part = sums[i] + first;
      for (std::int64_t j = 0; j < count; ++j) totals[j] += part[j];
    }
    for (std::int64_t j = 0; j < count; ++j) {
      to[first + j] += static_cast<float>(totals[j]);
    }
  }
}

}  // namespace

Status GemmWith(const GemmKernel& kernel, const Gemm& given, const Parallel& parallel) {
  const Status status = Validate(given);
  if (!status.ok()) return status;
  const Gemm gemm = FoldBatch(given);
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return {};
  const Product product = ProductOf(gemm, kernel.blocking);
  const std::int64_t threads = ThreadsFor(gemm, parallel.threads);
  // The threads take different products of a batch first, then tiles of one product.
  const Grid grid(product, kernel, CeilDiv(threads, gemm.batch));
  const std::int64_t sums = SumsOf(gemm) * gemm.batch;
  Job job = {gemm, product, kernel, grid, PartialSums(sums, gemm.n)};
  if (!job.sums.ok()) return {StatusCode::kOutOfMemory, "no memory for partial sums"};
  const std::int64_t tasks = job.grid.row_tiles * job.grid.column_tiles * gemm.batch;
  const auto body = [](void* context, std::int64_t task) {
    static_cast<Job*>(context)->Run(task);
  };
  if (parallel.run == nullptr || threads == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(&job, task);
  } else {
    parallel.run(parallel.state, tasks, &job, body);
  }
  if (job.out_of_memory) {
    return {StatusCode::kOutOfMemory, "no memory to pack the matrices"};
  }
  if (gemm.upstream != nullptr) AddUp(job.sums, sums, gemm.n, gemm.column_sums);
  return {};
}

Status GemmCpu(const Gemm& gemm, const Parallel& parallel, Isa isa) {
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return GemmWith(*KernelsOf(isa)->GemmOf(gemm.input), gemm, parallel);
}

}  // namespace keras_mp
