// Chooses tile shape and number of splits by a model of the time in cycles.

#include "cuda/gemm/plan.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/alignment.h"
#include "common/ceil_div.h"
#include "cuda/gemm/shapes.h"

namespace keras_mp::cuda {
namespace {

// The parameters of the model, per multiprocessor and clock cycle, between those of an
// A100 and an H100. They serve to compare the candidates and do not predict times.
constexpr double kMmaRate = 1024;     // FP16 multiply-adds, sm_80 and up
constexpr double kWmmaRate = 512;     // likewise, sm_70 and sm_75
constexpr double kMemoryRate = 12;    // bytes from DRAM
constexpr double kCacheRate = 40;     // bytes from the L2 cache
constexpr double kStepLatency = 150;  // of a step, in addition to its multiply-adds
constexpr double kNotHidden = 0.1;    // of the parts that overlap with the longest one
constexpr double kBlockLatency = 2000;   // to fill the ring, and to write the result
constexpr double kReduceLatency = 6000;  // of another kernel

constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr int kSplitGrain = 64;  // a multiple of every tile's kK

struct Candidate {
  TileKind kind;
  int m, n, k;
  int warps;
  int resident;       // blocks on a multiprocessor at a time
  double efficiency;  // of the multiply-adds, for large products
};

template <class Shape>
constexpr Candidate Make(TileKind kind, int resident, double efficiency) {
  static_assert(kSplitGrain % Shape::kK == 0);
  return {kind,       Shape::kM, Shape::kN, Shape::kK,
          Shape::kThreads / kWarp, resident, efficiency};
}

constexpr Candidate kMma[] = {
    Make<MmaLarge>(TileKind::kLarge, 1, 0.90),
    Make<MmaMedium>(TileKind::kMedium, 2, 0.85),
    Make<MmaSmall>(TileKind::kSmall, 3, 0.60),
    Make<MmaNarrow>(TileKind::kNarrow, 2, 0.50),
    Make<MmaFlat>(TileKind::kFlat, 2, 0.50),
};
constexpr Candidate kWmma[] = {
    Make<WmmaMedium>(TileKind::kMedium, 2, 0.80),
    Make<WmmaSmall>(TileKind::kSmall, 4, 0.60),
};

double Cycles(const Gemm& gemm, const Device& device, const Candidate& tile,
              std::int64_t k_per_split, std::int64_t splits) {
  const double tiles = static_cast<double>(CeilDiv(gemm.m, tile.m)) *
                       static_cast<double>(CeilDiv(gemm.n, tile.n)) *
                       static_cast<double>(gemm.batch);
  const double blocks = tiles * static_cast<double>(splits);
  const double per_device = device.multiprocessors;
  const double waves = std::max(1.0, blocks / per_device);
  // The last wave counts in full, though it leaves multiprocessors idle.
  const double whole = static_cast<double>(static_cast<std::int64_t>(waves + 0.999));

  const double steps = static_cast<double>(CeilDiv(k_per_split, tile.k));
  const double rate = device.capability >= 80 ? kMmaRate : kWmmaRate;
  const double step =
      static_cast<double>(tile.m) * tile.n * tile.k / (rate * tile.efficiency);
  const double together = std::min<double>(whole, tile.resident);
  // A single warp can use a quarter of the tensor cores of a multiprocessor.
  const double warp_step = step * 4 / tile.warps + kStepLatency;
  const double math = steps * std::max(whole * step, whole / together * warp_step);

  const double inner = static_cast<double>(k_per_split) * static_cast<double>(splits);
  const double m = static_cast<double>(gemm.m);
  const double n = static_cast<double>(gemm.n);
  const double products = static_cast<double>(gemm.batch);
  const double output = m * n * products * (gemm.output == DataType::kFloat ? 4 : 2);
  const double memory =
      ((m + n) * inner * products * 2 + output) / (per_device * kMemoryRate);
  const double cache =
      tiles * (tile.m + tile.n) * inner * 2 / (per_device * kCacheRate);

  double reduce = 0;
  if (splits > 1) {
    const double sums = m * n * products * 4 * static_cast<double>(splits);
    reduce = kReduceLatency + 2 * sums / (per_device * kCacheRate);
  }
  const double longest = std::max({math, memory, cache});
  return longest + kNotHidden * (math + memory + cache) + kBlockLatency + reduce;
}

// Returns whether the partial sums fit into `limit` bytes; does not overflow for any
// size.
bool Fits(const Gemm& gemm, std::int64_t splits, std::size_t limit,
          std::size_t* workspace) {
  const double bytes = 4.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
                       static_cast<double>(gemm.batch) * static_cast<double>(splits);
  if (bytes > static_cast<double>(std::min(limit, kMaxWorkspace))) return false;
  *workspace = static_cast<std::size_t>(bytes);  // exact: below 2^53
  return true;
}

}  // namespace

Status MakePlan(const Gemm& gemm, const Device& device, std::size_t workspace_limit,
                Plan* plan) {
  if (device.capability < 70) {
    return {StatusCode::kUnimplemented,
            "the own CUDA route needs tensor cores: compute capability 7.0 or higher"};
  }
  const bool mma = device.capability >= 80;
  if (!mma && gemm.input == DataType::kBfloat16) {
    return {StatusCode::kUnimplemented,
            "bfloat16 needs compute capability 8.0 or higher on the own CUDA route"};
  }
  if (std::max({gemm.m, gemm.n, gemm.k}) > kMaxSize) {
    return {StatusCode::kUnimplemented,
            "the own CUDA route takes m, n and k up to 2^30"};
  }

  double best = std::numeric_limits<double>::infinity();
  const Candidate* begin = mma ? std::begin(kMma) : std::begin(kWmma);
  const Candidate* end = mma ? std::end(kMma) : std::end(kWmma);
  for (const Candidate* tile = begin; tile != end; ++tile) {
    const std::int64_t tiles = CeilDiv(gemm.m, tile->m) * CeilDiv(gemm.n, tile->n);
    if (tiles > std::numeric_limits<int>::max()) continue;
    for (const std::int64_t wanted : kSplits) {
      const std::int64_t share = RoundUp(CeilDiv(gemm.k, wanted), kSplitGrain);
      const std::int64_t k_per_split = std::max<std::int64_t>(share, kSplitGrain);
      const std::int64_t splits =
          std::max<std::int64_t>(1, CeilDiv(gemm.k, k_per_split));
      std::size_t workspace = 0;
      if (splits > 1 && !Fits(gemm, splits, workspace_limit, &workspace)) continue;
      const double cycles = Cycles(gemm, device, *tile, k_per_split, splits);
      if (cycles < best) {
        best = cycles;
        *plan = {tile->kind, static_cast<int>(splits), static_cast<int>(k_per_split),
                 workspace};
      }
    }
  }
  if (best == std::numeric_limits<double>::infinity()) {
    return {StatusCode::kUnimplemented,
            "the own CUDA route takes an output of up to 2^31 tiles"};
  }
  return {};
}

int MatrixAlignment(const void* pointer, std::int64_t columns, std::int64_t ld,
                    std::int64_t stride, std::int64_t batch) {
  const std::int64_t distances = columns | ld | (batch > 1 ? stride : 0);
  const auto bytes = static_cast<std::uint64_t>(distances) * sizeof(Bits16);
  return static_cast<int>(AlignmentOf(pointer, 16, bytes));
}

Problem MakeProblem(const Gemm& gemm, const Plan& plan, void* workspace) {
  Problem p = {};
  p.a = static_cast<const Bits16*>(gemm.a);
  p.b = static_cast<const Bits16*>(gemm.b);
  p.c = gemm.c;
  p.bias = gemm.bias;
  p.alpha = gemm.k > 0 ? gemm.alpha : nullptr;  // an empty sum is 0, not 0 * alpha
  p.partial = static_cast<float*>(workspace);
  p.partial_stride = gemm.batch * gemm.m * gemm.n;
  p.lda = gemm.lda;
  p.ldb = gemm.ldb;
  p.ldc = gemm.ldc;
  p.stride_a = gemm.stride_a;
  p.stride_b = gemm.stride_b;
  p.stride_c = gemm.stride_c;
  p.m = static_cast<int>(gemm.m);
  p.n = static_cast<int>(gemm.n);
  p.k = static_cast<int>(gemm.k);
  p.splits = plan.splits;
  p.k_per_split = plan.k_per_split;
  p.align_a = MatrixAlignment(gemm.a, gemm.transpose_a ? gemm.m : gemm.k, gemm.lda,
                              gemm.stride_a, gemm.batch);
  p.align_b = MatrixAlignment(gemm.b, gemm.transpose_b ? gemm.k : gemm.n, gemm.ldb,
                              gemm.stride_b, gemm.batch);
  p.float_output = gemm.output == DataType::kFloat;
  p.float_bias = gemm.bias_type == DataType::kFloat;
  const std::uintptr_t pair = p.float_output ? 8 : 4;
  p.paired_stores = reinterpret_cast<std::uintptr_t>(gemm.c) % pair == 0 &&
                    gemm.ldc % 2 == 0 && (gemm.batch == 1 || gemm.stride_c % 2 == 0);
  switch (gemm.activation) {
    case Activation::kNone:
      p.activation = kNoActivation;
      break;
    case Activation::kRelu:
      p.activation = kRelu;
      break;
    case Activation::kTanh:
      p.activation = kTanh;
      break;
    case Activation::kSigmoid:
      p.activation = kSigmoid;
      break;
    case Activation::kGelu:
      p.activation = kGelu;
      break;
  }
  return p;
}

Problem SkipProducts(const Problem& problem, std::int64_t first) {
  Problem p = problem;
  p.a += first * p.stride_a;
  p.b += first * p.stride_b;
  p.c = static_cast<char*>(p.c) + first * p.stride_c * (p.float_output ? 4 : 2);
  if (p.partial != nullptr) p.partial += first * p.m * p.n;
  return p;
}

}  // namespace keras_mp::cuda
