// A product as the kernels of the instruction sets see it, and what each provides.

#ifndef KERAS_MP_SRC_GEMM_TILE_H_
#define KERAS_MP_SRC_GEMM_TILE_H_

#include <cstddef>
#include <cstdint>

#include "keras_mp/gemm.h"

namespace keras_mp {

// A matrix in memory: element (i, j) is data[i * row + j * column], where one of the
// two distances is 1.
struct View {
  const std::uint16_t* data;
  std::int64_t row;
  std::int64_t column;

  View At(std::int64_t i, std::int64_t j) const {
    return {data + i * row + j * column, row, column};
  }
  View Transposed() const { return {data, column, row}; }
};

// op(A) [m, k] times op(B) [k, n]. `swapped` says that this is the transpose of what
// was asked for: op(B)^T op(A)^T, to be written transposed, with a bias for each row.
struct Product {
  std::int64_t m, n, k;
  View a, b;
  void* c;
  std::int64_t c_row;  // from one row of what was asked for to the next
  bool swapped;
  DataType input, output;
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

// The kernel of one instruction set.
struct TileKernel {
  std::int64_t max_rows;     // of a Tile
  std::int64_t max_columns;  // of a Tile
  std::int64_t panel;        // tiles are best a multiple of this many columns wide
  std::int64_t few_rows;     // products of up to so many rows go to `few_rows_tile`
  std::int64_t few_rows_max_columns;
  std::size_t workspace_bytes;

  // Compute one tile; `workspace` is aligned to 64 bytes.
  void (*tile)(const Product& product, const Tile& tile, void* workspace);
  void (*few_rows_tile)(const Product& product, const Tile& tile, void* workspace);
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_GEMM_TILE_H_
