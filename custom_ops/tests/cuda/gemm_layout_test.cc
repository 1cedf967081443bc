// Checks the CUDA kernels on the host: every index of cuda/gemm/layout.h against the PTX
// ISA's words, the plans, and the kernels themselves in an emulator, against double
// precision. Needs neither a GPU nor CUDA.

#include <math.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/emulator.h"
// Uses what the emulator defines.
#include "cuda/gemm/mma.cuh"
#include "cuda/gemm/plan.h"
#include "cuda/gemm/shapes.h"
#include "cuda/gemm_tolerance.h"
#include "cuda/gemm/wmma.cuh"

namespace keras_mp::cuda {
namespace {

int failures = 0;

void Expect(bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// Every chunk has a place of its own, and ldmatrix gets what the fragment wants.
template <class Tile>
void CheckTile() {
  const std::string name = std::string(Tile::kContiguousK ? "[mn][k] " : "[k][mn] ") +
                           std::to_string(Tile::kMn) + "x" + std::to_string(Tile::kK);
  std::set<int> places;
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kRowChunks; ++chunk) {
      const int place = Tile::Offset(row, chunk);
      Expect(place >= 0 && place + kChunk <= Tile::kElements && place % kChunk == 0,
             name + ": a chunk lies outside of the tile");
      places.insert(place);
    }
  }
  Expect(static_cast<int>(places.size()) == Tile::kRows * Tile::kRowChunks,
         name + ": two chunks share a place");

  // Matrix i of the fragment begins 8 * (i % 2) further in mn and 8 * (i / 2) in k.
  for (int mn = 0; mn < Tile::kMn; mn += 16) {
    for (int k = 0; k < Tile::kK; k += 16) {
      for (int lane = 0; lane < 32; ++lane) {
        const int i = lane / 8;
        const int first_mn = mn + 8 * (i % 2);
        const int first_k = k + 8 * (i / 2);
        const int row = (Tile::kContiguousK ? first_mn : first_k) + lane % 8;
        const int chunk = (Tile::kContiguousK ? first_k : first_mn) / 8;
        Expect(Tile::FragmentOffset(mn, k, lane) == Tile::Offset(row, chunk),
               name + ": a lane reads the wrong row");
      }
      for (int i = 0; i < 4; ++i) {
        std::set<int> banks;
        for (int lane = 8 * i; lane < 8 * i + 8; ++lane) {
          banks.insert(Tile::FragmentOffset(mn, k, lane) / kChunk % 8);
        }
        Expect(banks.size() == 8, name + ": a bank conflict");
      }
    }
  }
}

template <class Shape>
void CheckShape() {
  CheckTile<SharedTile<true, Shape::kM, Shape::kK>>();
  CheckTile<SharedTile<false, Shape::kM, Shape::kK>>();
  CheckTile<SharedTile<true, Shape::kN, Shape::kK>>();
  CheckTile<SharedTile<false, Shape::kN, Shape::kK>>();
}

void CheckAccumulators() {
  std::set<int> seen;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = AccumulatorRow(lane, i);
      const int column = AccumulatorColumn(lane, i);
      Expect(row == (lane >> 2) + (i < 2 ? 0 : 8), "accumulator row");
      Expect(column == (lane % 4) * 2 + (i & 1), "accumulator column");
      seen.insert(row * 8 + column);
    }
  }
  Expect(seen.size() == 128, "accumulators cover 16x8");
}

void CheckTileOrder() {
  for (int tiles_m = 1; tiles_m <= 40; ++tiles_m) {
    for (int tiles_n = 1; tiles_n <= 40; ++tiles_n) {
      std::set<int> seen;
      for (int i = 0; i < tiles_m * tiles_n; ++i) {
        const TileIndex t = TileOf(i, tiles_m, tiles_n);
        if (t.m >= 0 && t.m < tiles_m && t.n >= 0 && t.n < tiles_n) {
          seen.insert(t.m * tiles_n + t.n);
        }
      }
      Expect(static_cast<int>(seen.size()) == tiles_m * tiles_n, "TileOf is a bijection");
    }
  }
  // The most tiles that a grid takes: no overflow on the way.
  const TileIndex last = TileOf((1 << 25) * 63 - 1, 63, 1 << 25);
  Expect(last.m == 62 && last.n == (1 << 25) - 1, "TileOf of a large grid");
}

void CheckSplits() {
  for (const int k : {0, 1, 63, 64, 65, 1000, 4096, 1 << 30}) {
    for (const int per_split : {64, 128, 1024, 1 << 30}) {
      const Index splits =
          std::max<Index>(1, CeilDiv(static_cast<Index>(k), per_split));
      if (splits > 100000) continue;
      int next = 0;
      for (int split = 0; split < splits; ++split) {
        const Range range = SplitRange(k, per_split, split);
        Expect(range.begin == next && range.end >= range.begin, "splits touch");
        Expect(range.begin % 64 == 0 || range.begin == range.end, "splits are aligned");
        next = range.end;
      }
      Expect(next == k, "splits cover k");
    }
  }
}

void CheckAlignment() {
  alignas(16) static char memory[64];
  Expect(MatrixAlignment(memory, 8, 0, 1) == 16, "16");
  Expect(MatrixAlignment(memory, 12, 0, 1) == 8, "ld 12");
  Expect(MatrixAlignment(memory, 10, 0, 1) == 4, "ld 10");
  Expect(MatrixAlignment(memory, 7, 0, 1) == 2, "ld 7");
  Expect(MatrixAlignment(memory + 2, 8, 0, 1) == 2, "pointer + 2");
  Expect(MatrixAlignment(memory + 8, 8, 0, 1) == 8, "pointer + 8");
  Expect(MatrixAlignment(memory, 8, 3, 1) == 16, "one product has no stride");
  Expect(MatrixAlignment(memory, 8, 3, 2) == 2, "stride 3");
  Expect(MatrixAlignment(memory, 8, 0, 9) == 16, "a shared matrix");
}

void CheckPlans() {
  std::mt19937 random(1);
  const std::int64_t sizes[] = {1,    7,    16,   64,   217,     1760,   4096,
                                9124, 65536, 1 << 20, 1 << 26, 1 << 30};
  const auto size = [&] { return sizes[random() % std::size(sizes)]; };
  for (int i = 0; i < 20000; ++i) {
    Gemm g;
    g.m = size();
    g.n = size();
    g.k = random() % 20 == 0 ? 0 : size();
    g.batch = random() % 3 == 0 ? size() : 1;
    const Device device = {132, random() % 2 ? 90 : 75};
    const std::size_t limit = random() % 2 ? kMaxWorkspace : random() % 100000;
    Plan plan;
    const Status status = MakePlan(g, device, limit, &plan);
    if (!status.ok()) {
      Expect(g.m * g.n > (std::int64_t{1} << 31) * 64 * 64, "refused without need");
      continue;
    }
    Expect(plan.workspace <= limit && plan.workspace <= kMaxWorkspace, "workspace limit");
    Expect(plan.k_per_split % 64 == 0 && plan.k_per_split > 0, "split grain");
    Expect(plan.splits >= 1 && plan.splits <= 64, "number of splits");
    Expect(static_cast<std::int64_t>(plan.splits) * plan.k_per_split >= g.k, "covers k");
    Expect(plan.splits == 1 ||
               (static_cast<std::int64_t>(plan.splits) - 1) * plan.k_per_split < g.k,
           "no empty split");
    Expect(plan.splits == 1 || static_cast<std::int64_t>(plan.workspace) ==
                                   4 * plan.splits * g.m * g.n * g.batch,
           "workspace of the sums");
  }

  Gemm g;
  g.m = g.n = g.k = 64;
  Plan plan;
  Expect(MakePlan(g, {80, 61}, 0, &plan).code == StatusCode::kUnimplemented, "Pascal");
  g.input = DataType::kBfloat16;
  Expect(MakePlan(g, {80, 75}, 0, &plan).code == StatusCode::kUnimplemented, "bf16, 75");
  Expect(MakePlan(g, {80, 80}, 0, &plan).ok(), "bf16, 80");
  g.m = kMaxSize + 1;
  Expect(MakePlan(g, {80, 80}, 0, &plan).code == StatusCode::kUnimplemented, "too large");

  // What the shapes and the splits are for.
  const auto plan_of = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    Gemm gemm;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    Plan result;
    Expect(MakePlan(gemm, {132, 90}, kMaxWorkspace, &result).ok(), "plan");
    return result;
  };
  Expect(plan_of(8192, 8192, 8192).tile == TileKind::kLarge, "large");
  Expect(plan_of(8192, 8192, 8192).splits == 1, "large: no splits");
  Expect(plan_of(64, 64, 65536).splits > 8, "small C, long sum: splits");
  Expect(plan_of(100000, 16, 1024).tile == TileKind::kNarrow, "narrow");
  Expect(plan_of(16, 100000, 1024).tile == TileKind::kFlat, "flat");
}

// A matrix that ends where its last number ends, so that a sanitizer sees what is read
// beyond, and begins `offset` numbers after a multiple of 16 bytes.
class Matrix {
 public:
  Matrix(std::int64_t elements, int bytes, int offset)
      : memory_(std::malloc(static_cast<std::size_t>((elements + offset) * bytes))),
        data_(static_cast<char*>(memory_) + offset * bytes) {}
  ~Matrix() { std::free(memory_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  void* data() const { return data_; }
  Bits16* bits() const { return reinterpret_cast<Bits16*>(data_); }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  void* memory_;
  char* data_;
};

struct Case {
  int m, n, k;
  int extra = 0;   // numbers between the end of a row and the next
  int offset = 0;  // numbers from an aligned address
  int batch = 1;
  int k_per_split = 1 << 30;
  bool bias = false;
  bool float_bias = false;
  bool float_output = false;
  Activation activation = Activation::kNone;
};

using Runner = std::function<void(const Problem&, std::int64_t batch)>;

template <class T, class Shape>
void RunKernel(void (*kernel)(Problem), const Problem& p, std::int64_t batch,
               std::size_t shared_bytes) {
  auto& machine = emulator::Machine::Get();
  static unsigned seed = 1;
  gridDim = {static_cast<unsigned>(CeilDiv(p.m, Shape::kM) * CeilDiv(p.n, Shape::kN)),
             static_cast<unsigned>(p.splits), static_cast<unsigned>(batch)};
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        machine.Run([&] { kernel(p); }, {Shape::kThreads}, shared_bytes, seed++);
      }
    }
  }
  if (p.splits == 1) return;
  gridDim = {static_cast<unsigned>(CeilDiv(p.n, 64)),
             static_cast<unsigned>(CeilDiv(p.m, 8)), static_cast<unsigned>(batch)};
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        machine.Run([&] { ReduceKernel<T>(p); }, {32, 8}, 0, seed++);
      }
    }
  }
}

template <class T>
void RunCase(const Case& c, bool transpose_a, bool transpose_b, const std::string& kernel,
             const Runner& run) {
  const std::string name = kernel + " " + std::to_string(c.m) + "," +
                           std::to_string(c.n) + "," + std::to_string(c.k) + " ta" +
                           std::to_string(transpose_a) + " tb" +
                           std::to_string(transpose_b) + " extra" +
                           std::to_string(c.extra) + " offset" + std::to_string(c.offset);
  Gemm g;
  g.m = c.m;
  g.n = c.n;
  g.k = c.k;
  g.batch = c.batch;
  g.transpose_a = transpose_a;
  g.transpose_b = transpose_b;
  g.input = std::is_same_v<T, Half> ? DataType::kHalf : DataType::kBfloat16;
  g.output = c.float_output ? DataType::kFloat : g.input;
  g.bias_type = c.float_bias ? DataType::kFloat : g.input;
  g.activation = c.activation;
  const std::int64_t rows_a = transpose_a ? c.k : c.m;
  const std::int64_t rows_b = transpose_b ? c.n : c.k;
  g.lda = (transpose_a ? c.m : c.k) + c.extra;
  g.ldb = (transpose_b ? c.k : c.n) + c.extra;
  g.ldc = c.n + c.extra;
  g.stride_a = rows_a * g.lda;
  g.stride_b = c.batch > 2 ? 0 : rows_b * g.ldb;  // three products share one B
  g.stride_c = c.m * g.ldc;

  static std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto number = [&] { return uniform(random); };
  // The last row is not padded: what lies beyond it is not ours to read.
  const auto count = [&](std::int64_t rows, std::int64_t ld, std::int64_t stride) {
    return rows == 0 ? 0 : stride * (g.batch - 1) + rows * ld - c.extra;
  };
  const std::int64_t count_a = count(rows_a, g.lda, g.stride_a);
  const std::int64_t count_b = count(rows_b, g.ldb, g.stride_b);
  const std::int64_t count_c = count(c.m, g.ldc, g.stride_c);
  const int output_bytes = c.float_output ? 4 : 2;
  const Matrix a(count_a, 2, c.offset);
  const Matrix b(count_b, 2, c.offset);
  const Matrix result(count_c, output_bytes, c.offset);
  const Matrix bias(c.n, c.float_bias ? 4 : 2, 0);
  for (int i = 0; i < count_a; ++i) a.bits()[i] = Round(T{}, number());
  for (int i = 0; i < count_b; ++i) b.bits()[i] = Round(T{}, number());
  for (int i = 0; i < c.n; ++i) {
    if (c.float_bias) {
      bias.floats()[i] = number();
    } else {
      bias.bits()[i] = Round(T{}, number());
    }
  }
  std::memset(result.data(), 0x5a, static_cast<std::size_t>(count_c * output_bytes));
  // An empty sum is 0, whatever alpha is.
  const float alpha = c.k == 0 ? HUGE_VALF : 0.75f;
  g.a = a.data();
  g.b = b.data();
  g.c = result.data();
  g.bias = c.bias ? bias.data() : nullptr;
  g.alpha = c.bias ? &alpha : nullptr;

  Plan plan;
  plan.k_per_split = c.k_per_split;
  plan.splits = std::max(1, c.k / c.k_per_split + (c.k % c.k_per_split != 0));
  std::vector<float> sums(static_cast<std::size_t>(
      plan.splits > 1 ? plan.splits * g.batch * g.m * g.n : 0));
  run(MakeProblem(g, plan, sums.data()), g.batch);

  const auto read = [&](const Bits16* x, std::int64_t i) { return Widen(T{}, x[i]); };
  for (std::int64_t z = 0; z < g.batch; ++z) {
    for (std::int64_t row = 0; row < c.m; ++row) {
      for (std::int64_t column = 0; column < g.ldc; ++column) {
        const std::int64_t at = z * g.stride_c + row * g.ldc + column;
        if (at >= count_c) continue;
        if (column >= c.n) {  // a gap between rows
          const bool kept = c.float_output
                                ? BitsOf(result.floats()[at]) == 0x5a5a5a5au
                                : result.bits()[at] == 0x5a5a;
          Expect(kept, name + ": writes between rows");
          continue;
        }
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t k = 0; k < c.k; ++k) {
          const double x = read(
              a.bits(), z * g.stride_a + (transpose_a ? k * g.lda + row : row * g.lda + k));
          const double y =
              read(b.bits(), z * g.stride_b +
                                 (transpose_b ? column * g.ldb + k : k * g.ldb + column));
          sum += x * y;
          magnitude += std::abs(x * y);
        }
        double added = 0;
        if (c.bias) {
          added = c.float_bias ? bias.floats()[column] : read(bias.bits(), column);
          if (c.k > 0) sum *= alpha;
          if (c.k > 0) magnitude *= alpha;
        }
        const double got =
            c.float_output ? result.floats()[at] : read(result.bits(), at);
        Expect(IsRight(got, sum, magnitude, added, c.k, g),
               name + " at " + std::to_string(row) + "," + std::to_string(column) +
                   ": " + std::to_string(got) + " from the sum " + std::to_string(sum));
      }
    }
  }
}

// Odd sizes, every alignment, splits, batches and epilogues.
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> c;
    for (const int extra : {0, 1, 2, 4, 8}) c.push_back({64, 64, 64, extra});
    for (const int offset : {1, 2, 4}) c.push_back({72, 40, 136, 0, offset});
    c.push_back({1, 1, 1});
    c.push_back({7, 17, 16, 1});
    c.push_back({17, 7, 111, 3, 1});
    c.push_back({16, 217, 64, 7});
    c.push_back({217, 16, 65});
    c.push_back({111, 111, 217, 1, 1});
    c.push_back({5, 9, 0, 0, 0, 2});
    c.push_back({24, 40, 200, 0, 0, 3, 64});   // a shared B, splits
    c.push_back({33, 65, 129, 3, 1, 2, 128});
    Case full = {40, 23, 50};
    full.bias = true;
    for (const Activation activation : {Activation::kNone, Activation::kRelu,
                                        Activation::kTanh, Activation::kSigmoid,
                                        Activation::kGelu}) {
      full.activation = activation;
      full.float_output = !full.float_output;
      full.float_bias = activation == Activation::kTanh || full.float_output;
      c.push_back(full);
    }
    Case empty = full;
    empty.k = 0;
    c.push_back(empty);
    full.k_per_split = 64;
    full.k = 250;
    full.n = 22;
    c.push_back(full);
    return c;
  }();
  return cases;
}

template <class T, class Shape, bool kContiguousKA, bool kContiguousKB>
void CheckMma(const std::string& name) {
  for (const Case& c : Cases()) {
    RunCase<T>(c, !kContiguousKA, kContiguousKB, name,
               [](const Problem& p, std::int64_t batch) {
                 RunKernel<T, Shape>(MmaKernel<T, Shape, kContiguousKA, kContiguousKB>, p,
                                     batch, MmaMemory<Shape>::kBytes);
               });
  }
}

template <class T, class Shape>
void CheckMmaShape(const std::string& name) {
  CheckMma<T, Shape, false, false>(name);
  CheckMma<T, Shape, false, true>(name);
  CheckMma<T, Shape, true, false>(name);
  CheckMma<T, Shape, true, true>(name);
}

template <class Shape, bool kContiguousKA, bool kContiguousKB>
void CheckWmma(const std::string& name) {
  for (const Case& c : Cases()) {
    RunCase<Half>(c, !kContiguousKA, kContiguousKB, name,
                  [](const Problem& p, std::int64_t batch) {
                    RunKernel<Half, Shape>(
                        WmmaKernel<Shape, kContiguousKA, kContiguousKB>, p, batch,
                        WmmaMemory<Shape, kContiguousKA, kContiguousKB>::kBytes);
                  });
  }
}

template <class Shape>
void CheckWmmaShape(const std::string& name) {
  CheckWmma<Shape, false, false>(name);
  CheckWmma<Shape, false, true>(name);
  CheckWmma<Shape, true, false>(name);
  CheckWmma<Shape, true, true>(name);
}

int Main() {
  CheckAccumulators();
  CheckTileOrder();
  CheckSplits();
  CheckAlignment();
  CheckPlans();
  CheckShape<MmaLarge>();
  CheckShape<MmaMedium>();
  CheckShape<MmaSmall>();
  CheckShape<MmaNarrow>();
  CheckShape<MmaFlat>();
  std::printf("index arithmetic: %d failures\n", failures);
  CheckMmaShape<Half, MmaSmall>("small");
  CheckMmaShape<Half, MmaNarrow>("narrow");
  CheckMmaShape<Half, MmaFlat>("flat");
  CheckMmaShape<Half, MmaMedium>("medium");
  CheckMmaShape<Half, MmaLarge>("large");
  CheckMma<Bfloat16, MmaSmall, true, false>("bfloat16");
  std::printf("and mma.sync: %d failures\n", failures);
  CheckWmmaShape<WmmaSmall>("wmma small");
  CheckWmmaShape<WmmaMedium>("wmma medium");
  std::printf("and wmma: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keras_mp::cuda

int main() { return keras_mp::cuda::Main(); }
