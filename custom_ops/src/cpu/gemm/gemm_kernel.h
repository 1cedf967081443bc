// A product as the kernels of the instruction sets see it, and what each provides.

#ifndef KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_
#define KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/gemm.h"

namespace keras_mp {

// A matrix in memory: element (i, j) is data[i * row + j * column], where one of the
// two distances is 1.
struct View {
  const void* data;
  DataType type;
  std::int64_t row;
  std::int64_t column;

  View Moved(std::int64_t elements) const {
    const std::int64_t size = type == DataType::kFloat ? 4 : 2;
    return {static_cast<const char*>(data) + elements * size, type, row, column};
  }
  View At(std::int64_t i, std::int64_t j) const { return Moved(i * row + j * column); }
  View Transposed() const { return {data, type, column, row}; }
};

// op(A) [m, k] times op(B) [k, n]. `swapped` says that this is the transpose of what
// was asked for: op(B)^T op(A)^T, to be written transposed, with a bias for each row.
struct Product {
  std::int64_t m, n, k;
  View a, b;
  void* c;
  std::int64_t c_row;  // from one row of what was asked for to the next
  bool swapped;
  DataType output;
  float alpha;
  const void* bias;
  DataType bias_type;
  Activation activation;
};

// Rows [i, i + rows) and columns [j, j + columns) of a Product.
struct Tile {
  std::int64_t i, rows;
  std::int64_t j, columns;
};

// How a product is cut: the numbers that suit a processor.
struct Blocking {
  std::int64_t terms;        // of each sum (gemm_terms.h) that are packed at a time
  std::int64_t max_rows;     // of a Tile
  std::int64_t max_columns;  // of a Tile
  // Products of up to so many rows go to `few_rows_tile`: where the rows of B lie in
  // memory one after the other, and where its columns do.
  std::int64_t few_rows_of_rows, few_rows_of_columns;
  std::int64_t few_rows_max_columns;
};

// The kernel of one instruction set, for one 16-bit format.
struct GemmKernel {
  Blocking blocking;
  std::int64_t panel;  // tiles are best a multiple of this many columns wide
  std::size_t workspace_bytes;

  // Compute one tile; `workspace` is aligned to 64 bytes.
  using Function = void (*)(const Product& product, const Tile& tile,
                            const Blocking& blocking, void* workspace);
  Function tile, few_rows_tile;
};

// The product of gemm_cpu.h with a kernel for its input's type.
Status GemmWith(const GemmKernel& kernel, const Gemm& gemm, const Parallel& parallel);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_H_
