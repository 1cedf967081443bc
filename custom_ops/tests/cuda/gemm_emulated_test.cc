// Tests of the CUDA kernels of the product, run thread by thread on the host, against
// double precision. They need neither a GPU nor CUDA.

#include <math.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/emulator.h"
// After the emulator, whose definitions they use.
#include "cuda/gemm/mma.cuh"
#include "cuda/gemm/plan.h"
#include "cuda/gemm/round.cuh"
#include "cuda/gemm/shapes.h"
#include "cuda/gemm/wmma.cuh"
#include "cuda/gemm_tolerance.h"

namespace keras_mp::cuda {
namespace {

int failures = 0;

void Expect(bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// A matrix whose memory ends with its last element, so that a sanitizer sees reads
// beyond, and begins `offset` elements after a multiple of 16 bytes.
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
  int extra = 0;   // elements between the end of a row and the next row
  int offset = 0;  // elements after an aligned address
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
  // The last row is not padded: a kernel must not read beyond its end.
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
          const double x =
              read(a.bits(), z * g.stride_a +
                                 (transpose_a ? k * g.lda + row : row * g.lda + k));
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
        Expect(IsRight(got, sum, magnitude, added, c.k, g, SumRounding::kNearest),
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

// Every element is rounded, and nothing is written beyond, on grids smaller and larger
// than the array.
template <class T>
void CheckRound() {
  for (const int count : {1, 7, 255, 256, 257, 1000}) {
    for (const unsigned blocks : {1u, 2u, 5u}) {
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      const Matrix from(count, 4, 0), to(count + 1, 2, 0);
      for (int i = 0; i < count; ++i) from.floats()[i] = normal(random);
      from.floats()[count / 2] = 1 + 0x1p-9f + 0x1p-20f;  // has more than 11 bits
      to.bits()[count] = 0x5a5a;
      gridDim = {blocks, 1, 1};
      for (blockIdx = {0, 0, 0}; blockIdx.x < blocks; ++blockIdx.x) {
        emulator::Machine::Get().Run(
            [&] { RoundKernel<T>(from.floats(), to.bits(), count); }, {kRoundThreads}, 0,
            blockIdx.x);
      }
      for (int i = 0; i < count; ++i) {
        Expect(to.bits()[i] == Round(T{}, from.floats()[i]), "an element is not rounded");
      }
      Expect(to.bits()[count] == 0x5a5a, "rounding writes beyond the array");
    }
  }
}

int Main() {
  CheckRound<Half>();
  CheckRound<Bfloat16>();
  std::printf("rounding of B: %d failures\n", failures);
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
