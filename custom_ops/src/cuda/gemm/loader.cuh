// Copies tile after tile of an operand along k from global to shared memory. Elements
// outside of the matrix, or of this split's part of k, are zero.
//
// An operand is a matrix of 16-bit numbers, with a distance of `ld` elements from one row
// to the next. Rows begin and end at multiples of `align` bytes: 16, 8, 4 or 2.
//
// Build and test without a GPU, thread by thread on the host:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target gemm_cuda_emulated_test &&
//   build/cpp/gemm_cuda_emulated_test

#ifndef KERAS_MP_SRC_CUDA_GEMM_LOADER_CUH_
#define KERAS_MP_SRC_CUDA_GEMM_LOADER_CUH_

#include "cuda/gemm/layout.h"

#ifdef __CUDACC__
#include "cuda/gemm/primitives.cuh"
#endif

namespace keras_mp::cuda {

// The chunks of a tile that one thread copies: one column of chunks, in the rows row,
// row + kRowStep, ...
template <class Tile, int kThreads>
struct TileShare {
  static constexpr int kRowStep = kThreads / Tile::kRowChunks;
  static constexpr int kCount = Tile::kRows / kRowStep;
  static_assert(kThreads % Tile::kRowChunks == 0 && Tile::kRows % kRowStep == 0);
  static_assert(kRowStep % 8 == 0, "all chunks of a thread must have the same Key()");

  const Bits16* base;    // the matrix: always a valid address
  const Bits16* source;  // the first chunk of the next tile
  Index pitch;           // from one chunk to the next
  Index advance;         // from one tile to the next
  int place;             // offset of the first chunk in shared memory
  int rows_left;         // rows of the matrix from this thread's first row on
  int columns_left;      // likewise columns

  // The first tile begins at row `mn` of op(A), or column `mn` of op(B), which has
  // `mn_end` of them, and at range.begin of k.
  __device__ __forceinline__ TileShare(const Bits16* matrix, Index ld, int mn, int mn_end,
                                       Range range, int thread)
      : base(matrix) {
    const int row = thread / Tile::kRowChunks;
    const int chunk = thread % Tile::kRowChunks;
    const int first_row = (Tile::kContiguousK ? mn : range.begin) + row;
    const int first_column = (Tile::kContiguousK ? range.begin : mn) + chunk * kChunk;
    source = matrix + first_row * ld + first_column;
    pitch = kRowStep * ld;
    advance = Tile::kContiguousK ? Tile::kK : Tile::kK * ld;
    place = Tile::Offset(row, chunk);
    rows_left = (Tile::kContiguousK ? mn_end : range.end) - first_row;
    columns_left = (Tile::kContiguousK ? range.end : mn_end) - first_column;
  }

  // The number of elements of chunk i that are inside of the matrix, 0 to 8.
  __device__ __forceinline__ int Valid(int i) const {
    return HasRow(i) ? Clamp(columns_left, 0, kChunk) : 0;
  }
  // Whether the element `column` of chunk i is inside of the matrix.
  __device__ __forceinline__ bool Has(int i, int column) const {
    return HasRow(i) && column < columns_left;
  }
  __device__ __forceinline__ bool HasRow(int i) const { return i * kRowStep < rows_left; }
  __device__ __forceinline__ const Bits16* Source(int i) const {
    return Has(i, 0) ? source + i * pitch : base;
  }
  __device__ __forceinline__ Bits16* Place(Bits16* tile, int i) const {
    return tile + place + i * kRowStep * Tile::kColumns;
  }
  __device__ __forceinline__ void Advance() {
    source += advance;
    (Tile::kContiguousK ? columns_left : rows_left) -= Tile::kK;
  }
};

// Reads the first `valid` of eight elements one by one, at any alignment.
__device__ __forceinline__ uint4 ReadChunk(const Bits16* source, int valid) {
  unsigned word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned low = 2 * i < valid ? source[2 * i] : 0;
    const unsigned high = 2 * i + 1 < valid ? source[2 * i + 1] : 0;
    word[i] = low | high << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <class Tile, int kThreads>
class AsyncLoader {
 public:
  __device__ __forceinline__ AsyncLoader(const Bits16* matrix, Index ld, int align, int mn,
                                         int mn_end, Range range, int thread)
      : share_(matrix, ld, mn, mn_end, range, thread), align_(align) {}

  // Starts to copy the next tile. This thread's part has arrived after CopyWait.
  __device__ __forceinline__ void Load(Bits16* tile) {
    if (align_ >= 8) {
      CopyBy<8>(tile);
    } else if (align_ == 4) {
      CopyBy<4>(tile);
    } else {  // cp.async cannot copy two bytes
#pragma unroll
      for (int i = 0; i < Share::kCount; ++i) {
        *reinterpret_cast<uint4*>(share_.Place(tile, i)) =
            ReadChunk(share_.Source(i), share_.Valid(i));
      }
    }
    share_.Advance();
  }

  // Load() where `align` is 16, which does not ask for it again at each tile.
  __device__ __forceinline__ void LoadAligned(Bits16* tile) {
    CopyBy<16>(tile);
    share_.Advance();
  }

 private:
  using Share = TileShare<Tile, kThreads>;

  // Copies chunks in parts of kBytes, to which they are aligned: a part is inside of the
  // matrix or outside. Nothing is read outside.
  template <int kBytes>
  __device__ __forceinline__ void CopyBy(Bits16* tile) {
    constexpr int kElements = kBytes / 2;
#pragma unroll
    for (int i = 0; i < Share::kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kChunk; j += kElements) {
        CopyAsync<kBytes>(share_.Place(tile, i) + j, share_.source + i * share_.pitch + j,
                          share_.Has(i, j) ? kBytes : 0);
      }
    }
  }

  Share share_;
  int align_;
};

#endif  // sm_80

// Copies without cp.async: Fetch() loads the next tile into registers while the last one
// is in use, Store() then writes it to shared memory.
template <class Tile, int kThreads>
class RegisterLoader {
 public:
  __device__ __forceinline__ RegisterLoader(const Bits16* matrix, Index ld, int align,
                                            int mn, int mn_end, Range range, int thread)
      : share_(matrix, ld, mn, mn_end, range, thread), align_(align) {}

  __device__ __forceinline__ void Fetch() {
    if (align_ >= 8) {
#pragma unroll
      for (int i = 0; i < Share::kCount; ++i) {
        const uint2 low = ReadHalf(i, 0), high = ReadHalf(i, kChunk / 2);
        chunk_[i] = make_uint4(low.x, low.y, high.x, high.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Share::kCount; ++i) {
        chunk_[i] = ReadChunk(share_.Source(i), share_.Valid(i));
      }
    }
    share_.Advance();
  }

  // Fetch() where `align` is 16, which does not ask for it again at each tile.
  __device__ __forceinline__ void FetchAligned() {
#pragma unroll
    for (int i = 0; i < Share::kCount; ++i) {
      chunk_[i] = share_.Has(i, 0)
                      ? *reinterpret_cast<const uint4*>(share_.source + i * share_.pitch)
                      : make_uint4(0, 0, 0, 0);
    }
    share_.Advance();
  }

  // Stores rows at a distance of kPitch elements, without swizzling.
  template <int kPitch>
  __device__ __forceinline__ void Store(Bits16* tile, int thread) const {
    const int row = thread / Tile::kRowChunks;
    const int column = thread % Tile::kRowChunks * kChunk;
#pragma unroll
    for (int i = 0; i < Share::kCount; ++i) {
      Bits16* to = tile + (row + i * Share::kRowStep) * kPitch + column;
      *reinterpret_cast<uint4*>(to) = chunk_[i];
    }
  }

 private:
  using Share = TileShare<Tile, kThreads>;

  // The half of chunk i that begins at element `first`.
  __device__ __forceinline__ uint2 ReadHalf(int i, int first) const {
    const Bits16* from = share_.source + i * share_.pitch + first;
    return share_.Has(i, first) ? *reinterpret_cast<const uint2*>(from) : uint2{0, 0};
  }

  Share share_;
  int align_;
  uint4 chunk_[Share::kCount];
};

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_GEMM_LOADER_CUH_
