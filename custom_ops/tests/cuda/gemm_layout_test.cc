// Tests of the index arithmetic of the CUDA product, cuda/gemm/layout.h, against the PTX
// ISA, and of the plans of cuda/gemm/plan.h. They need neither a GPU nor CUDA.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "cuda/gemm/layout.h"
#include "cuda/gemm/plan.h"
#include "cuda/gemm/shapes.h"

namespace keras_mp::cuda {
namespace {

int failures = 0;

void Expect(bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// Every chunk of a tile has a place of its own, and ldmatrix reads the rows that the
// fragment needs, without bank conflicts.
template <class Tile, int kWarpMn>
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

  for (int lane = 0; lane < 32; ++lane) {
    for (int mn = 0; mn < Tile::kMn; mn += kWarpMn) {
      const int first = Tile::FragmentOffset(mn, 0, lane);
      for (int more_mn = 0; more_mn < kWarpMn; more_mn += 16) {
        for (int k = 0; k < Tile::kK; k += 16) {
          Expect(Tile::FragmentOffsetFrom(first, more_mn, k) ==
                     Tile::FragmentOffset(mn + more_mn, k, lane),
                 name + ": another offset than from the beginning");
        }
      }
    }
  }

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
  CheckTile<SharedTile<true, Shape::kM, Shape::kK>, Shape::kWarpM>();
  CheckTile<SharedTile<false, Shape::kM, Shape::kK>, Shape::kWarpM>();
  CheckTile<SharedTile<true, Shape::kN, Shape::kK>, Shape::kWarpN>();
  CheckTile<SharedTile<false, Shape::kN, Shape::kK>, Shape::kWarpN>();
}

void CheckLanesOfB() {
  const int matrices[] = {0, 2, 1, 3};
  for (int lane = 0; lane < 32; ++lane) {
    Expect(LaneForB(lane) == 8 * matrices[lane / 8] + lane % 8, "lane for B");
  }
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
  // The largest grid, without overflow.
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
  Expect(MatrixAlignment(memory, 8, 8, 0, 1) == 16, "16");
  Expect(MatrixAlignment(memory, 8, 12, 0, 1) == 8, "ld 12");
  Expect(MatrixAlignment(memory, 7, 8, 0, 1) == 2, "7 columns");
  Expect(MatrixAlignment(memory, 4, 8, 0, 1) == 8, "4 columns");
  Expect(MatrixAlignment(memory, 8, 10, 0, 1) == 4, "ld 10");
  Expect(MatrixAlignment(memory, 8, 7, 0, 1) == 2, "ld 7");
  Expect(MatrixAlignment(memory + 2, 8, 8, 0, 1) == 2, "pointer + 2");
  Expect(MatrixAlignment(memory + 8, 8, 8, 0, 1) == 8, "pointer + 8");
  Expect(MatrixAlignment(memory, 8, 8, 3, 1) == 16, "one product has no stride");
  Expect(MatrixAlignment(memory, 8, 8, 3, 2) == 2, "stride 3");
  Expect(MatrixAlignment(memory, 8, 8, 0, 9) == 16, "a shared matrix");
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

  // Each shape is chosen for the products that it is meant for.
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

int Main() {
  CheckAccumulators();
  CheckLanesOfB();
  CheckTileOrder();
  CheckSplits();
  CheckAlignment();
  CheckPlans();
  CheckShape<MmaLarge>();
  CheckShape<MmaMedium>();
  CheckShape<MmaSmall>();
  CheckShape<MmaNarrow>();
  CheckShape<MmaFlat>();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keras_mp::cuda

int main() { return keras_mp::cuda::Main(); }
