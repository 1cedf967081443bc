// The index arithmetic of the CUDA product, separate from the kernels, so that every
// index can be tested without a GPU, by tests/cuda/gemm_layout_test.cc:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target gemm_cuda_layout_test &&
//   build/cpp/gemm_cuda_layout_test

#ifndef KERAS_MP_SRC_CUDA_GEMM_LAYOUT_H_
#define KERAS_MP_SRC_CUDA_GEMM_LAYOUT_H_

#include "common/ceil_div.h"
#include "cuda/gemm/problem.h"

namespace keras_mp::cuda {

constexpr int kWarp = 32;
constexpr int kChunk = 8;  // 16-bit elements in 16 bytes, the widest copy

KERAS_MP_HOST_DEVICE constexpr int Clamp(int x, int low, int high) {
  return x < low ? low : x > high ? high : x;
}

struct TileIndex {
  int m, n;
};

// The tile that block `linear` of the grid computes. The order goes through eight rows of
// tiles together, so that blocks that run at the same time share rows of A and columns of
// B in the L2 cache.
KERAS_MP_HOST_DEVICE TileIndex TileOf(int linear, int tiles_m, int tiles_n) {
  constexpr int kGroup = 8;
  const int first = linear / (kGroup * tiles_n) * kGroup;
  const int rows = Clamp(tiles_m - first, 1, kGroup);
  const int inside = linear % (kGroup * tiles_n);
  return {first + inside % rows, inside / rows};
}

struct Range {
  int begin, end;
};

// The part of k that a split adds up.
KERAS_MP_HOST_DEVICE Range SplitRange(int k, int k_per_split, int split) {
  const Index begin = static_cast<Index>(split) * k_per_split;
  const Index end = begin + k_per_split;
  return {static_cast<int>(begin < k ? begin : k), static_cast<int>(end < k ? end : k)};
}

// The tile of an operand in shared memory: kMn rows of op(A), or columns of op(B), and kK
// steps of k. It has the order of the operand in global memory: [kMn][kK] where k is
// contiguous there, else [kK][kMn].
//
// ldmatrix reads eight rows of 16 bytes at once, which must be in different banks. Rows
// have no gaps between them; chunk c of a row is stored at position c XOR Key(row) (a
// swizzle), so that the same chunk of eight neighbouring rows covers all 32 banks.
template <bool kContiguousK_, int kMn_, int kK_>
struct SharedTile {
  static constexpr bool kContiguousK = kContiguousK_;
  static constexpr int kMn = kMn_;
  static constexpr int kK = kK_;
  static constexpr int kRows = kContiguousK ? kMn : kK;
  static constexpr int kColumns = kContiguousK ? kK : kMn;
  static constexpr int kRowChunks = kColumns / kChunk;
  static constexpr int kElements = kRows * kColumns;
  static_assert(kColumns % 16 == 0 && (kRowChunks & (kRowChunks - 1)) == 0);

  KERAS_MP_HOST_DEVICE static constexpr int Key(int row) {
    return kRowChunks >= 8 ? row % 8 : row / (8 / kRowChunks) % kRowChunks;
  }

  // The position of the first element of a chunk, in elements.
  KERAS_MP_HOST_DEVICE static constexpr int Offset(int row, int chunk) {
    return row * kColumns + (chunk ^ Key(row)) * kChunk;
  }

  // The row of 16 bytes whose address a lane of the warp gives to ldmatrix.x4, to load
  // the 16x16 block at (mn, k), both multiples of 16, as four 8x8 matrices in the order
  //   0: mn 0-7, k 0-7    1: mn 8-15, k 0-7    2: mn 0-7, k 8-15    3: mn 8-15, k 8-15
  // which is the order of the registers of an A fragment of mma.m16n8k16.
  // Key(row) depends on the lane alone, as mn and k are multiples of 8.
  KERAS_MP_HOST_DEVICE static constexpr int FragmentOffset(int mn, int k, int lane) {
    const int eighth = lane / 8;  // the matrix of the row of this lane
    const int lane_row = lane % 8 + 8 * (kContiguousK ? eighth % 2 : eighth / 2);
    const int lane_chunk = kContiguousK ? eighth / 2 : eighth % 2;
    const int chunk = (kContiguousK ? k : mn) / kChunk + lane_chunk;
    return (kContiguousK ? mn : k) * kColumns + lane_row * kColumns +
           (chunk ^ Key(lane_row)) * kChunk;
  }

  // FragmentOffset(mn + more_mn, k, lane), given first = FragmentOffset(mn, 0, lane). What
  // is added to the chunk has bits that mn and the lane leave 0, if mn is a multiple of a
  // power of two above more_mn; so it moves the swizzled chunk by an XOR. A loop over
  // constants adds constants to a few addresses.
  KERAS_MP_HOST_DEVICE static constexpr int FragmentOffsetFrom(int first, int more_mn,
                                                               int k) {
    return kContiguousK ? (first ^ k) + more_mn * kColumns
                        : (first ^ more_mn) + k * kColumns;
  }
};

// The lane whose address a lane gives to ldmatrix.x4 for B, so that matrices 1 and 2
// change places: a block of B is two fragments of mma.m16n8k16, columns 0-7 in registers 0
// and 1, columns 8-15 in 2 and 3. The instruction takes neighbouring registers.
KERAS_MP_HOST_DEVICE constexpr int LaneForB(int lane) {
  return lane % 8 + lane / 8 % 2 * 16 + lane / 16 * 8;
}

// The position of accumulator i of a lane in the 16x8 result of mma.m16n8k16 (PTX ISA,
// "Matrix fragments for mma.m16n8k16 with floating point type").
KERAS_MP_HOST_DEVICE constexpr int AccumulatorRow(int lane, int i) {
  return lane / 4 + i / 2 * 8;
}
KERAS_MP_HOST_DEVICE constexpr int AccumulatorColumn(int lane, int i) {
  return lane % 4 * 2 + i % 2;
}

// The tile shape of a kernel: a block computes kM x kN elements of C in steps of kK along
// k, and each of its warps kWarpM x kWarpN of them. The ring in shared memory has kStages
// tiles.
template <int kM_, int kN_, int kK_, int kWarpM_, int kWarpN_, int kStages_>
struct TileShape {
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kK = kK_;
  static constexpr int kWarpM = kWarpM_;
  static constexpr int kWarpN = kWarpN_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * kWarp;

  // The FP32 strip of 16 rows in shared memory through which a warp stores its result.
  // The padding of rows puts the four rows of a store of pairs into different banks.
  static constexpr int kStripPitch = kWarpN + 8;
  static constexpr int kStripFloats = 16 * kStripPitch;
  static constexpr int kStripBytes = kThreads / kWarp * kStripFloats * 4;
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_LAYOUT_H_
