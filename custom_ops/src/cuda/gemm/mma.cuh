// alpha * op(A) * op(B), then the epilogue, on the tensor cores of sm_80 and up: cp.async
// fills a ring of tiles in shared memory, ldmatrix loads fragments from them, and
// mma.sync multiplies and accumulates in FP32.
//
// A, B and C are row-major, possibly transposed, with row distances lda, ldb and ldc and
// batch distances stride_a, stride_b and stride_c, as in keras_mp/gemm.h;
// cuda/gemm/problem.h has all arguments. A and B have 16 bits and any alignment; C has 16
// or 32 bits.
//
// Build and test without a GPU, thread by thread on the host:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target gemm_cuda_emulated_test &&
//   build/cpp/gemm_cuda_emulated_test
// With a GPU:
//   cmake -S custom_ops -B build/cuda -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=ON &&
//   cmake --build build/cuda --target gemm_cuda_test && build/cuda/gemm_cuda_test
// Run it from its PTX, and count what the assembler makes of it: pytest tests/cuda_ptx

#ifndef KERAS_MP_SRC_CUDA_GEMM_MMA_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_MMA_CUH_

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/loader.cuh"

namespace keras_mp::cuda {

template <class Shape>
struct MmaMemory {
  static constexpr int kStage = (Shape::kM + Shape::kN) * Shape::kK;  // elements
  static constexpr int kRingBytes = Shape::kStages * kStage * 2;
  static constexpr int kBytes =
      kRingBytes > Shape::kStripBytes ? kRingBytes : Shape::kStripBytes;
};

// The 16x16 blocks of one operand that a warp needs for 16 steps of k.
template <class Tile, int kBlocks>
struct Fragments {
  unsigned r[kBlocks][4];

  // `first` is the FragmentOffset of this lane in the first block. The tile is a pointer to
  // bytes: the compiler then needs one addition for an address, and no shift.
  __device__ __forceinline__ void Load(const unsigned char* tile, int first, int k) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      LoadMatrices<!Tile::kContiguousK>(
          tile + 2 * Tile::FragmentOffsetFrom(first, 16 * i, k), r[i]);
    }
  }
};

// In the grid x is tiles of C, y splits of k, and z products. kContiguousKA,
// kContiguousKB: whether k is contiguous in A (not transposed) and in B (transposed).
template <class T, class Shape, bool kContiguousKA, bool kContiguousKB>
__global__ void __launch_bounds__(Shape::kThreads) MmaKernel(const Problem p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using TileA = SharedTile<kContiguousKA, Shape::kM, Shape::kK>;
  using TileB = SharedTile<kContiguousKB, Shape::kN, Shape::kK>;
  constexpr int kStages = Shape::kStages;
  constexpr int kStage = MmaMemory<Shape>::kStage;
  constexpr int kBlocksM = Shape::kWarpM / 16;
  constexpr int kBlocksN = Shape::kWarpN / 16;

  const int thread = threadIdx.x;
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int warp_m = warp % (Shape::kM / Shape::kWarpM) * Shape::kWarpM;
  const int warp_n = warp / (Shape::kM / Shape::kWarpM) * Shape::kWarpN;
  const int split = blockIdx.y;
  const int z = blockIdx.z;

  const TileIndex tile =
      TileOf(blockIdx.x, CeilDiv(p.m, Shape::kM), CeilDiv(p.n, Shape::kN));
  const Range range = SplitRange(p.k, p.k_per_split, split);
  AsyncLoader<TileA, Shape::kThreads> load_a(p.a + z * p.stride_a, p.lda, p.align_a,
                                             tile.m * Shape::kM, p.m, range, thread);
  AsyncLoader<TileB, Shape::kThreads> load_b(p.b + z * p.stride_b, p.ldb, p.align_b,
                                             tile.n * Shape::kN, p.n, range, thread);

  Bits16* const ring = reinterpret_cast<Bits16*>(SharedMemory());
  const int steps = CeilDiv(range.end - range.begin, Shape::kK);
  // One branch for both, for the operands that have to be fast.
  const bool are_aligned = p.align_a == 16 && p.align_b == 16;
  const auto load = [&](int step) {
    if (step < steps) {
      Bits16* stage = ring + step % kStages * kStage;
      if (are_aligned) {
        load_a.LoadAligned(stage);
        load_b.LoadAligned(stage + TileA::kElements);
      } else {
        load_a.Load(stage);
        load_b.Load(stage + TileA::kElements);
      }
    }
    CopyCommit();  // also without a copy, as CopyWait counts groups
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) load(step);

  const int first_a = TileA::FragmentOffset(warp_m, 0, lane);
  const int first_b = TileB::FragmentOffset(warp_n, 0, LaneForB(lane));
  float sum[kBlocksM][2 * kBlocksN][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    CopyWait<kStages - 2>();  // this thread's part of tile `step` has arrived;
    SyncThreads();  // now all of it has, and no thread reads tile `step` - 1 any more,
    load(step + kStages - 1);  // whose memory this overwrites

    const unsigned char* tile_a = SharedMemory() + step % kStages * (2 * kStage);
    const unsigned char* tile_b = tile_a + 2 * TileA::kElements;
    Fragments<TileA, kBlocksM> a[2];
    Fragments<TileB, kBlocksN> b[2];
    a[0].Load(tile_a, first_a, 0);
    b[0].Load(tile_b, first_b, 0);
#pragma unroll
    for (int k = 0; k < Shape::kK; k += 16) {
      const int now = k / 16 % 2;
      if (k + 16 < Shape::kK) {
        a[1 - now].Load(tile_a, first_a, k + 16);
        b[1 - now].Load(tile_b, first_b, k + 16);
      }
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kBlocksN; ++j) {
          const unsigned* block = b[now].r[j / 2] + j % 2 * 2;
          MultiplyAdd(T{}, sum[i][j], a[now].r[i], block[0], block[1]);
        }
      }
    }
  }

  CopyWait<0>();
  SyncThreads();  // no thread reads the ring any more: its memory is used for the strips
  float* strip = reinterpret_cast<float*>(SharedMemory()) + warp * Shape::kStripFloats;
#pragma unroll
  for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        float* to = strip + AccumulatorRow(lane, e) * Shape::kStripPitch + 8 * j +
                    AccumulatorColumn(lane, e);
        *reinterpret_cast<float2*>(to) = make_float2(sum[i][j][e], sum[i][j][e + 1]);
      }
    }
    SyncWarp();
    StoreStrip<T, Shape>(p, z, split, tile.m * Shape::kM + warp_m + 16 * i,
                         tile.n * Shape::kN + warp_n, strip, lane);
    SyncWarp();
  }
#endif
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_MMA_CUH_
