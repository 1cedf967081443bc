// alpha * op(A) * op(B), then the epilogue, on the tensor cores of Volta and Turing
// (sm_70, sm_75), by WMMA with FP32 accumulators. Compiles with nvcc and with NVRTC: it
// includes only headers for device code.
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
// Run it from its PTX, and count what the assembler makes of it: pytest tests/cuda_ptx

#ifndef KERAS_MP_SRC_CUDA_GEMM_WMMA_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_WMMA_CUH_

#ifdef __CUDACC__
#include <mma.h>
#endif

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/loader.cuh"

namespace keras_mp::cuda {

// Like SharedTile, but with eight more elements in a row instead of the swizzle: WMMA
// loads matrices with a constant pitch.
template <class Tile>
struct WmmaTile {
  static constexpr int kPitch = Tile::kColumns + kChunk;
  static constexpr int kElements = Tile::kRows * kPitch;

  // Every 16x16 block begins at a multiple of 32 bytes, as WMMA requires.
  KERAS_MP_HOST_DEVICE static constexpr int Offset(int mn, int k) {
    return Tile::kContiguousK ? mn * kPitch + k : k * kPitch + mn;
  }
};

template <class Shape, bool kContiguousKA, bool kContiguousKB>
struct WmmaMemory {
  using TileA = SharedTile<kContiguousKA, Shape::kM, Shape::kK>;
  using TileB = SharedTile<kContiguousKB, Shape::kN, Shape::kK>;
  static constexpr int kStage =
      WmmaTile<TileA>::kElements + WmmaTile<TileB>::kElements;
  static constexpr int kTileBytes = Shape::kStages * kStage * 2;
  static constexpr int kBytes =
      kTileBytes > Shape::kStripBytes ? kTileBytes : Shape::kStripBytes;
};

template <bool kContiguousK, class RowMajor, class ColumnMajor>
struct Layout {
  using type = RowMajor;
};
template <class RowMajor, class ColumnMajor>
struct Layout<false, RowMajor, ColumnMajor> {
  using type = ColumnMajor;
};

// The grid and the template arguments are those of MmaKernel. The elements are FP16: the
// tensor cores of these devices do not support bfloat16.
template <class Shape, bool kContiguousKA, bool kContiguousKB>
__global__ void __launch_bounds__(Shape::kThreads) WmmaKernel(const Problem p) {
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 700 && __CUDA_ARCH__ < 800)
  namespace wmma = nvcuda::wmma;
  using Memory = WmmaMemory<Shape, kContiguousKA, kContiguousKB>;
  using TileA = WmmaTile<typename Memory::TileA>;
  using TileB = WmmaTile<typename Memory::TileB>;
  using LayoutA =
      typename Layout<kContiguousKA, wmma::row_major, wmma::col_major>::type;
  using LayoutB =
      typename Layout<kContiguousKB, wmma::col_major, wmma::row_major>::type;
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
  RegisterLoader<typename Memory::TileA, Shape::kThreads> load_a(
      p.a + z * p.stride_a, p.lda, p.align_a, tile.m * Shape::kM, p.m, range, thread);
  RegisterLoader<typename Memory::TileB, Shape::kThreads> load_b(
      p.b + z * p.stride_b, p.ldb, p.align_b, tile.n * Shape::kN, p.n, range, thread);

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[kBlocksM][kBlocksN];
#pragma unroll
  for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
  }

  Bits16* const tiles = reinterpret_cast<Bits16*>(SharedMemory());
  const int steps = CeilDiv(range.end - range.begin, Shape::kK);
  // One branch for both, for the operands that have to be fast.
  const bool are_aligned = p.align_a == 16 && p.align_b == 16;
  const auto fetch = [&](int step) {
    if (step >= steps) return;
    if (are_aligned) {
      load_a.FetchAligned();
      load_b.FetchAligned();
    } else {
      load_a.Fetch();
      load_b.Fetch();
    }
  };
  const auto store = [&](int step, Bits16* stage) {
    if (step >= steps) return;
    load_a.template Store<TileA::kPitch>(stage, thread);
    load_b.template Store<TileB::kPitch>(stage + TileA::kElements, thread);
  };
  const auto multiply = [&](const Bits16* tile_a) {
    const Bits16* const tile_b = tile_a + TileA::kElements;
#pragma unroll
    for (int k = 0; k < Shape::kK; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, LayoutA> a[kBlocksM];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, LayoutB> b[kBlocksN];
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
        const Bits16* block = tile_a + TileA::Offset(warp_m + 16 * i, k);
        wmma::load_matrix_sync(a[i], reinterpret_cast<const __half*>(block),
                               TileA::kPitch);
      }
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        const Bits16* block = tile_b + TileB::Offset(warp_n + 16 * j, k);
        wmma::load_matrix_sync(b[j], reinterpret_cast<const __half*>(block),
                               TileB::kPitch);
      }
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) {
          wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
        }
      }
    }
  };

  fetch(0);
  if constexpr (Shape::kStages == 1) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      SyncThreads();  // no thread reads the last tile any more
      store(step, tiles);
      SyncThreads();
      fetch(step + 1);
      multiply(tiles);
    }
  } else {
    Bits16 *now = tiles, *next = tiles + Memory::kStage;
    store(0, now);
    fetch(1);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      SyncThreads();  // tile `step` is whole, and no thread reads tile `step` - 1 any
      store(step + 1, next);  // more, whose memory this overwrites
      fetch(step + 2);
      multiply(now);
      Bits16* const read = now;
      now = next;
      next = read;
    }
  }

  SyncThreads();  // the memory of the tiles is used for the strips
  float* strip = reinterpret_cast<float*>(SharedMemory()) + warp * Shape::kStripFloats;
#pragma unroll
  for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
      wmma::store_matrix_sync(strip + 16 * j, sum[i][j], Shape::kStripPitch,
                              wmma::mem_row_major);
    }
    SyncWarp();
    StoreStrip<Half, Shape>(p, z, split, tile.m * Shape::kM + warp_m + 16 * i,
                            tile.n * Shape::kN + warp_n, strip, lane);
    SyncWarp();
  }
#endif
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_WMMA_CUH_
