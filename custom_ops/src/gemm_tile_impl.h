// The product of one instruction set, as a template: included once by each of
// kernels_*.cc, which is compiled for that set. Everything here depends on `Simd`, so
// that the linker cannot take one set's code for another's.

#ifndef KERAS_MP_SRC_GEMM_TILE_IMPL_H_
#define KERAS_MP_SRC_GEMM_TILE_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "gemm_epilogue.h"
#include "gemm_few_rows.h"
#include "gemm_micro.h"
#include "gemm_pack.h"
#include "gemm_tile.h"
#include "simd.h"

namespace keras_mp {

template <class Simd>
class TileOf {
 public:
  static constexpr int kVectors = 2;
  static constexpr int kPanel = kVectors * Simd::kWidth;
  static constexpr std::int64_t kMaxRows = 512;
  static constexpr std::int64_t kMaxColumns = 256;
  static constexpr std::int64_t kDepth = Simd::kDepth;
  static constexpr std::int64_t kStride = kDepth + 16;  // rows of A in different sets
  static constexpr std::int64_t kBlockRows = 16 * Simd::kRows;

  static constexpr std::int64_t kFewRows = 8;
  static constexpr std::int64_t kFewRowsMaxColumns = 2048;
  static constexpr std::int64_t kFewRowsDepth = 2048;

  // A few columns of C as rows, in different sets of the cache.
  static constexpr std::int64_t kStrip = 8;
  static constexpr std::int64_t kStripRow = kMaxRows + 16;

  struct Workspace {
    alignas(64) float a[kBlockRows * kStride];
    alignas(64) float b[kDepth * kMaxColumns];
    alignas(64) float c[kMaxRows * kMaxColumns];
    alignas(64) float strip[kStrip * kStripRow];
    alignas(64) float bias[kFewRowsMaxColumns];
  };
  static_assert(kFewRows * kFewRowsDepth <= kBlockRows * kStride);
  static_assert(kFewRows * kFewRowsMaxColumns <= kMaxRows * kMaxColumns);
  static_assert(std::max(kMaxRows, kMaxColumns) <= kFewRowsMaxColumns);

  static void Tile(const Product& product, const keras_mp::Tile& tile, void* memory) {
    Workspace& workspace = *static_cast<Workspace*>(memory);
    if (product.input == DataType::kHalf) {
      Multiply<Half<Simd>>(product, tile, workspace);
      Finish<Half<Simd>>(product, tile, workspace, kMaxColumns);
    } else {
      Multiply<Bfloat16<Simd>>(product, tile, workspace);
      Finish<Bfloat16<Simd>>(product, tile, workspace, kMaxColumns);
    }
  }

  static void FewRowsTile(const Product& product, const keras_mp::Tile& tile,
                          void* memory) {
    Workspace& workspace = *static_cast<Workspace*>(memory);
    if (product.input == DataType::kHalf) {
      MultiplyFewRows<Half<Simd>>(product, tile, workspace);
      Finish<Half<Simd>>(product, tile, workspace, kFewRowsMaxColumns);
    } else {
      MultiplyFewRows<Bfloat16<Simd>>(product, tile, workspace);
      Finish<Bfloat16<Simd>>(product, tile, workspace, kFewRowsMaxColumns);
    }
  }

 private:
  // workspace.c [rows, kMaxColumns] = A B
  template <class Format>
  static void Multiply(const Product& product, const keras_mp::Tile& tile,
                       Workspace& workspace) {
    if (product.k == 0) std::fill_n(workspace.c, tile.rows * kMaxColumns, 0.0f);
    for (std::int64_t p = 0; p < product.k; p += kDepth) {
      const std::int64_t depth = std::min(kDepth, product.k - p);
      PackPanels<Simd, Format, kPanel>(product.b.At(p, tile.j), depth, tile.columns,
                                       workspace.b);
      for (std::int64_t i = 0; i < tile.rows; i += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, tile.rows - i);
        PackRows<Simd, Format, kStride>(product.a.At(tile.i + i, p), rows, depth,
                                        workspace.a);
        for (std::int64_t j = 0; j < tile.columns; j += kPanel) {
          MicroRows<Simd, kVectors, kStride>::Run(
              workspace.a, rows, workspace.b + j * depth, depth, p > 0,
              workspace.c + i * kMaxColumns + j, kMaxColumns);
        }
      }
    }
  }

  // workspace.c [rows, kFewRowsMaxColumns] = A B
  template <class Format>
  static void MultiplyFewRows(const Product& product, const keras_mp::Tile& tile,
                              Workspace& workspace) {
    std::fill_n(workspace.c, tile.rows * kFewRowsMaxColumns, 0.0f);
    for (std::int64_t p = 0; p < product.k; p += kFewRowsDepth) {
      const std::int64_t depth = std::min(kFewRowsDepth, product.k - p);
      PackRows<Simd, Format, kFewRowsDepth>(product.a.At(tile.i, p), tile.rows, depth,
                                            workspace.a);
      const View b = product.b.At(p, tile.j);
      const auto multiply = b.column == 1 ? Sweep<Simd, Format> : Dots<Simd, Format>;
      multiply(workspace.a, kFewRowsDepth, tile.rows, b, depth, tile.columns,
               workspace.c, kFewRowsMaxColumns);
    }
  }

  // C = what the epilogue makes of workspace.c, whose rows are `sums_row` apart.
  template <class Format>
  static void Finish(const Product& product, const keras_mp::Tile& tile,
                     Workspace& workspace, std::int64_t sums_row) {
    if (!product.swapped) {
      const float* bias = Bias<Format>(product, tile.j, tile.columns, workspace);
      Write<Format>(product, tile, workspace.c, sums_row, bias);
      return;
    }
    const float* bias = Bias<Format>(product, tile.i, tile.rows, workspace);
    for (std::int64_t j = 0; j < tile.columns; j += kStrip) {
      const std::int64_t width = std::min(kStrip, tile.columns - j);
      for (std::int64_t i = 0; i < tile.rows; ++i) {
        for (std::int64_t q = 0; q < width; ++q) {
          workspace.strip[q * kStripRow + i] = workspace.c[i * sums_row + j + q];
        }
      }
      const keras_mp::Tile out = {tile.j + j, width, tile.i, tile.rows};
      Write<Format>(product, out, workspace.strip, kStripRow, bias);
    }
  }

  // The bias of columns [j, j + columns) of C in FP32; null where there is none.
  template <class Format>
  static const float* Bias(const Product& product, std::int64_t j, std::int64_t columns,
                           Workspace& workspace) {
    if (product.bias == nullptr) return nullptr;
    if (product.bias_type == DataType::kFloat) {
      return static_cast<const float*>(product.bias) + j;
    }
    Convert<Simd, Format>(static_cast<const std::uint16_t*>(product.bias) + j, columns,
                          workspace.bias);
    return workspace.bias;
  }

  // Rows and columns `out` of C, as it was asked for.
  template <class Format>
  static void Write(const Product& product, const keras_mp::Tile& out, const float* sums,
                    std::int64_t sums_row, const float* bias) {
    const std::int64_t offset = out.i * product.c_row + out.j;
    if (product.output == DataType::kFloat) {
      FinishRows<Simd, Single<Simd>>(sums, sums_row, out.rows, out.columns,
                                     product.alpha, bias, product.activation,
                                     static_cast<float*>(product.c) + offset,
                                     product.c_row);
    } else {
      FinishRows<Simd, Format>(sums, sums_row, out.rows, out.columns, product.alpha,
                               bias, product.activation,
                               static_cast<std::uint16_t*>(product.c) + offset,
                               product.c_row);
    }
  }
};

template <class Simd>
constexpr TileKernel kTileKernel = {
    TileOf<Simd>::kMaxRows,
    TileOf<Simd>::kMaxColumns,
    TileOf<Simd>::kPanel,
    TileOf<Simd>::kFewRows,
    TileOf<Simd>::kFewRowsMaxColumns,
    sizeof(typename TileOf<Simd>::Workspace),
    TileOf<Simd>::Tile,
    TileOf<Simd>::FewRowsTile,
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_GEMM_TILE_IMPL_H_
