// The interface between cpu/gemm/gemm.cc, which cuts a product into tiles, and the GEMM
// kernel that each instruction set has for each format.

#ifndef KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_
#define KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/gemm.h"

namespace keras_mp {

constexpr std::int64_t SizeOf(DataType type) { return type == DataType::kFloat ? 4 : 2; }

// A matrix in memory: element (i, j) is data[i * row + j * column]. One of the two
// strides is 1: the matrix is row-major where `column` is 1, else column-major.
struct MatrixView {
  const void* data;
  DataType type;
  std::int64_t row;
  std::int64_t column;

  MatrixView Moved(std::int64_t elements) const {
    return {static_cast<const char*>(data) + elements * SizeOf(type), type, row, column};
  }
  MatrixView At(std::int64_t i, std::int64_t j) const {
    return Moved(i * row + j * column);
  }
  MatrixView Transposed() const { return {data, type, column, row}; }
};

// op(A) [m, k] times op(B) [k, n]. Where `swapped`, this is the transpose of the
// caller's product, op(B)^T op(A)^T: the kernel writes it transposed, and its bias has
// one element for each row.
struct Product {
  std::int64_t m, n, k;
  MatrixView a, b;
  void* c;
  std::int64_t c_row;  // row stride of the caller's C
  bool swapped;
  DataType output;
  float alpha;
  const void* bias;
  DataType bias_type;
  Activation activation;
  // Of a gradient, which is not swapped; else null. Sums of kRowsPerSum rows each are
  // written to `partial_sums`, [ceil(m / kRowsPerSum), n].
  const void* upstream;
  DataType upstream_type;
  float* partial_sums;
};

inline constexpr std::int64_t kRowsPerSum = 64;

// Rows [i, i + rows) and columns [j, j + columns) of a Product.
struct Tile {
  std::int64_t i, rows;
  std::int64_t j, columns;
};

// The most that the workspace of a kernel has room for: steps of a packed block, and rows
// of a product that is not packed.
inline constexpr std::int64_t kMaxSteps = 512, kMaxSkinnyRows = 48;

// Cache blocking, tuned for a processor. In the words of BLIS: `steps` is KC, in steps of
// cpu/gemm/multiply_accumulate.h, `max_rows` bounds MC and `max_columns` bounds NC.
struct Blocking {
  std::int64_t steps;        // along k, packed at a time
  std::int64_t max_rows;     // of a Tile
  std::int64_t max_columns;  // of a Tile
  // Products of up to so many rows go to `skinny_tile`, where B is row-major and where
  // it is column-major.
  std::int64_t skinny_rows_row_major_b, skinny_rows_column_major_b;
  std::int64_t skinny_max_columns;
};

// The GEMM kernel of one instruction set for one format.
struct GemmKernel {
  Blocking blocking;
  std::int64_t panel;  // columns of a packed panel of B: a tile is best a multiple wide
  std::size_t workspace_bytes;

  // Compute one tile; `workspace` is aligned to 64 bytes.
  using Function = void (*)(const Product& product, const Tile& tile,
                            const Blocking& blocking, void* workspace);
  Function tile, skinny_tile;
};

// Computes `gemm` (gemm_cpu.h) with `kernel`, whose format is that of A.
Status GemmWith(const GemmKernel& kernel, const Gemm& gemm, const Parallel& parallel);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_
