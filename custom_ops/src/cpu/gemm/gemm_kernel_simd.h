// The GEMM kernel of one instruction set: one tile of
//
//   C = round(activation(alpha * op(A) * op(B) + bias))
//
// for A and B in FP16, bfloat16 or FP32, accumulated in FP32. For FP16 on AVX-512 the format
// is Half<Avx512> of cpu/simd/avx512.h. A block of A and panels of B are packed
// (cpu/gemm/packing.h), multiplied by the micro-kernel (cpu/gemm/micro_kernel.h, with AMX
// cpu/gemm/tile_register_micro_kernel.h), and written by the epilogue
// (cpu/gemm/epilogue.h). Few rows take the unpacked path of cpu/gemm/skinny_gemm.h.
//
// On tile registers that know bfloat16 alone, an FP16 element is the sum of two numbers of
// bfloat16, and a product that of four. Where a sum is not finite, a tile is computed again
// in FP32: inf has no such two numbers.
//
// The template is instantiated by the sources that CMake writes from
// cpu/kernels_for_isa.cc.in, each compiled with the flags of its instruction set.
// Everything here depends on `Simd`, so that the linker cannot take the code of one
// instruction set for that of another.
//
//   cmake --build build/custom_ops --target gemm_cpu_test &&
//     build/custom_ops/gemm_cpu_test

#ifndef KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_SIMD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/ceil_div.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/gemm_kernel.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/packing.h"
#include "cpu/gemm/skinny_gemm.h"
#include "cpu/gemm/tile_register_micro_kernel.h"
#include "cpu/simd/shuffle.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// A tile of C for A and B of `Format`, which is Half<Simd>, Bfloat16<Simd> or Single<Simd>,
// where A and B are packed by steps of `Step`.
template <class Simd, class Format,
          class Step = typename StepFor<Simd, Format>::Type>
class GemmTile {
  using InVectors = GemmTile<Simd, Format, typename VectorStepFor<Simd, Format>::Type>;
  using SkinnyStep = typename VectorStepFor<Simd, Format>::Type;
  using Element = typename Format::Element;
  using FromFormat = StoredSource<Simd, Format>;
  using FromFloat = std::conditional_t<std::is_same_v<Element, float>, FromFormat,
                                       RoundedSource<Simd, Format>>;
  static constexpr std::int64_t kWidth = Simd::kWidth;
  static constexpr int kVectors = 2, kParts = Step::kParts;
  static constexpr std::int64_t kElementBytes = sizeof(Element);

 public:
  static constexpr int kPanel = kVectors * Simd::kWidth;
  // Rows of the packed block of A; + 16 puts neighbours into different cache sets.
  static constexpr std::int64_t kStride = kMaxSteps + 16;
  static constexpr std::int64_t kBlockRows = 16 * Simd::kMicroRows;
  static constexpr std::int64_t kMaxRows = 512;
  static constexpr std::int64_t kMaxColumns = Simd::kTileColumns / kParts;

  static constexpr std::int64_t kSkinnyMaxColumns = 2048;
  static constexpr std::int64_t kSkinnyMaxSteps = 2048;

  static_assert(Simd::kStepsPerBlock <= kMaxSteps);
  static_assert(Simd::kSkinnyRowsRowMajorB <= kMaxSkinnyRows);
  static_assert(Simd::kSkinnyRowsColumnMajorB <= kMaxSkinnyRows);
  static constexpr Blocking kBlocking = {
      Simd::kStepsPerBlock / kParts,
      kMaxRows,
      kMaxColumns,
      Simd::kSkinnyRowsRowMajorB,
      Simd::kSkinnyRowsColumnMajorB,
      kSkinnyMaxColumns,
  };

  // What separates the rows of a tile of C, as for kStride.
  static constexpr std::int64_t kGap = 16;
  // Row stride of a transposed strip of C.
  static constexpr std::int64_t kStripRow = kMaxRows + kGap;

  struct Workspace {
    union {
      alignas(64) typename Step::Packed a[kBlockRows * kParts * kStride];
      alignas(64) typename SkinnyStep::Packed skinny_a[kMaxSkinnyRows * kSkinnyMaxSteps];
    };
    alignas(64) typename Step::Packed b[kMaxSteps * kParts * kMaxColumns];
    alignas(64) float c[kMaxRows * (kMaxColumns + kGap)];
    alignas(64) float strip[kWidth * kStripRow];
    alignas(64) float bias[kSkinnyMaxColumns];
  };
  static_assert(kMaxSkinnyRows * kSkinnyMaxColumns <= kMaxRows * kMaxColumns);
  static_assert(std::max(kMaxRows, kMaxColumns) <= kSkinnyMaxColumns);
  static_assert(kMaxRows % kRowsPerSum == 0);
  // Room for the rows of zeros.
  static_assert(kBlockRows % Step::kRowMultiple == 0 &&
                kMaxRows % Step::kRowMultiple == 0);

  static void Tile(const Product& product, const keras_mp::Tile& tile,
                   const Blocking& blocking, void* memory) {
    const bool done = ComputeTile(product, tile, blocking, memory);
    if constexpr (kParts > 1) {
      if (!done) InVectors::Tile(product, tile, blocking, memory);
    }
  }

  static constexpr std::size_t WorkspaceBytes() {
    if constexpr (kParts > 1) {
      return std::max(sizeof(Workspace), InVectors::WorkspaceBytes());
    }
    return sizeof(Workspace);
  }

  static void SkinnyTile(const Product& product, const keras_mp::Tile& tile,
                         const Blocking&, void* memory) {
    Workspace& workspace = *static_cast<Workspace*>(memory);
    const std::int64_t c_row = RoundUp(tile.columns, kWidth);
    std::fill_n(workspace.c, tile.rows * c_row, 0.0f);
    constexpr std::int64_t kStep = kSkinnyMaxSteps * SkinnyStep::kElements;
    for (std::int64_t p = 0; p < product.k; p += kStep) {
      const std::int64_t depth = std::min(kStep, product.k - p);
      PackRows<SkinnyStep>(product.a.At(tile.i, p), tile.rows, depth,
                           workspace.skinny_a, kSkinnyMaxSteps);
      const MatrixView b = product.b.At(p, tile.j);
      const auto multiply = b.type == DataType::kFloat
                                ? SkinnyGemm<Simd, SkinnyStep, FromFloat>::Multiply
                                : SkinnyGemm<Simd, SkinnyStep, FromFormat>::Multiply;
      multiply(workspace.skinny_a, kSkinnyMaxSteps, tile.rows, b, depth, tile.columns,
               workspace.c, c_row);
    }
    Finish(product, tile, workspace.c, c_row, workspace);
  }

 private:
  // Whether all sums are finite, or are to be written as they are.
  static bool ComputeTile(const Product& product, const keras_mp::Tile& tile,
                          const Blocking& blocking, void* memory) {
    Workspace& workspace = *static_cast<Workspace*>(memory);
    const std::int64_t c_row = RoundUp(tile.columns, kWidth) + kGap;
    if (product.k == 0) {
      std::fill_n(workspace.c, tile.rows * c_row, 0.0f);
      Finish(product, tile, workspace.c, c_row, workspace);
    }
    [[maybe_unused]] typename Step::Scope scope;
    const std::int64_t step = BlockAlongK(product.k, blocking.steps);
    for (std::int64_t p = 0; p < product.k; p += step) {
      const std::int64_t depth = std::min(step, product.k - p);
      PackPanels(product.b.At(p, tile.j), depth, tile.columns, workspace.b);
      for (std::int64_t i = 0; i < tile.rows; i += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, tile.rows - i);
        const MatrixView a = product.a.At(tile.i + i, p);
        const std::int64_t unpacked = UnpackedRows(a, rows, depth, tile.columns);
        PackRows<Step>(a.At(unpacked, 0), rows - unpacked, depth, workspace.a, kStride);
        // Sums that one block along k completes take turns in the same cache lines.
        float* c = workspace.c + (product.k <= step ? 0 : i * c_row);
        const std::int64_t steps = StepsOf<Step>(depth);
        for (std::int64_t j = 0; j < tile.columns; j += kPanel) {
          MultiplyPanel(a, unpacked, workspace.a, rows,
                        workspace.b + j * kParts * steps, steps, tile.columns - j, p > 0,
                        c + j, c_row);
        }
        if (p + depth == product.k) {
          if (kParts > 1 && !AreFinite(c, rows, tile.columns, c_row)) return false;
          const keras_mp::Tile block = {tile.i + i, rows, tile.j, tile.columns};
          Finish(product, block, c, c_row, workspace);
        }
      }
    }
    return true;
  }

  // Elements along k of blocks of nearly equal size, of up to `steps` each.
  static std::int64_t BlockAlongK(std::int64_t k, std::int64_t steps) {
    const std::int64_t all = CeilDiv(k, Step::kElements);
    const std::int64_t blocks = std::max<std::int64_t>(1, CeilDiv(all, steps));
    const std::int64_t block = CeilDiv(all, blocks);
    return std::min(steps, RoundUp(block, Step::kStepMultiple)) * Step::kElements;
  }

  // Whether a sum is neither inf nor NaN, for all of them: x - x is 0.
  static bool AreFinite(const float* c, std::int64_t rows, std::int64_t columns,
                        std::int64_t c_row) {
    typename Simd::Float zeros = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; j += kWidth) {
        const auto sums = Load<Simd>(c + i * c_row + j);
        zeros += sums - sums;
      }
    }
    return Lanes<Simd>::Sum(zeros) == 0;
  }

  template <class AnyStep, int kPart = 0>
  static void PackRows(const MatrixView& a, std::int64_t rows, std::int64_t depth,
                       typename AnyStep::Packed* to, std::int64_t stride) {
    using Float = PartOf<Simd, AnyStep, FromFloat, kPart>;
    using Stored = PartOf<Simd, AnyStep, FromFormat, kPart>;
    const auto pack = a.type == DataType::kFloat ? Packer<Simd, AnyStep, Float>::Rows
                                                 : Packer<Simd, AnyStep, Stored>::Rows;
    pack(a, rows, depth, to + kPart * stride, AnyStep::kParts * stride);
    if constexpr (kPart + 1 < AnyStep::kParts) {
      PackRows<AnyStep, kPart + 1>(a, rows, depth, to, stride);
    }
  }

  template <int kPart = 0>
  static void PackPanels(const MatrixView& b, std::int64_t depth, std::int64_t columns,
                         typename Step::Packed* to) {
    using Float = PartOf<Simd, Step, FromFloat, kPart>;
    using Stored = PartOf<Simd, Step, FromFormat, kPart>;
    const auto pack = b.type == DataType::kFloat
                          ? Packer<Simd, Step, Float>::template Panels<kPanel>
                          : Packer<Simd, Step, Stored>::template Panels<kPanel>;
    pack(b, depth, columns, to + kPart * kPanel * StepsOf<Step>(depth));
    if constexpr (kPart + 1 < kParts) PackPanels<kPart + 1>(b, depth, columns, to);
  }

  // How many of the rows of a block of A are not packed, since few columns read them.
  // Rows a multiple of 4 KiB apart share cache sets, and stay there for fewer.
  static std::int64_t UnpackedRows(const MatrixView& a, std::int64_t rows,
                                   std::int64_t depth, std::int64_t columns) {
    const bool fits = a.column == 1 && a.type != DataType::kFloat &&
                      depth % (Step::kElements * Step::kStepMultiple) == 0;
    const std::int64_t most = a.row * kElementBytes % 4096 == 0 ? 64 : 160;
    if (!Step::kReadsUnpacked || !fits || columns > most) return 0;
    return rows - rows % Step::kRowMultiple;
  }

  // c = or += (where `accumulate`) rows of A, of which the first `unpacked` lie in `a` and
  // the others are packed, times a packed panel of B with up to `columns` columns.
  static void MultiplyPanel(const MatrixView& a, std::int64_t unpacked,
                            const typename Step::Packed* packed, std::int64_t rows,
                            const typename Step::Packed* b, std::int64_t steps,
                            std::int64_t columns, bool accumulate, float* c,
                            std::int64_t c_row) {
    constexpr int kRows = Simd::kMicroRows;
    using Wide = MicroKernelRows<Simd, Step, kRows, kVectors, kStride>;
    // A last panel one vector wide leaves registers for twice as many rows.
    using Narrow = MicroKernelRows<Simd, Step, kVectors * kRows, 1, kStride>;
    const bool is_narrow = columns <= kWidth;
    if constexpr (Step::kReadsUnpacked) {
      const auto multiply = is_narrow ? Narrow::RunUnpacked : Wide::RunUnpacked;
      multiply(a.data, a.row * kElementBytes, unpacked, b, steps, accumulate, c,
               c_row);
      c += unpacked * c_row;
    }
    const auto multiply = is_narrow ? Narrow::Run : Wide::Run;
    multiply(packed, rows - unpacked, b, steps, accumulate, c, c_row);
  }

  // Applies the epilogue to the sums c, with row stride c_row, and writes them to C. A
  // swapped product is transposed first, a strip of kWidth columns at a time.
  static void Finish(const Product& product, const keras_mp::Tile& tile, const float* c,
                     std::int64_t c_row, Workspace& workspace) {
    if (!product.swapped) {
      const float* bias = Bias(product, tile.j, tile.columns, workspace);
      Write(product, tile, c, c_row, bias);
      return;
    }
    const float* bias = Bias(product, tile.i, tile.rows, workspace);
    for (std::int64_t j = 0; j < tile.columns; j += kWidth) {
      for (std::int64_t i = 0; i < tile.rows; i += kWidth) {
        typename Simd::Float square[kWidth] = {};
        const std::int64_t rows = std::min(kWidth, tile.rows - i);
        for (std::int64_t q = 0; q < rows; ++q) {
          square[q] = Load<Simd>(c + (i + q) * c_row + j);
        }
        Lanes<Simd>::Transpose(square);
        for (std::int64_t q = 0; q < kWidth; ++q) {
          Store<Simd>(workspace.strip + q * kStripRow + i, square[q]);
        }
      }
      const keras_mp::Tile out = {tile.j + j, std::min(kWidth, tile.columns - j),
                                  tile.i, tile.rows};
      Write(product, out, workspace.strip, kStripRow, bias);
    }
  }

  // The bias of columns [j, j + columns) of the caller's C in FP32, or null.
  static const float* Bias(const Product& product, std::int64_t j, std::int64_t columns,
                           Workspace& workspace) {
    if (product.bias == nullptr) return nullptr;
    if (product.bias_type == DataType::kFloat) {
      return static_cast<const float*>(product.bias) + j;
    }
    Convert<Simd, Format>(static_cast<const Element*>(product.bias) + j, columns,
                          workspace.bias);
    return workspace.bias;
  }

  // Writes the rows and columns `out` of the caller's C.
  static void Write(const Product& product, const keras_mp::Tile& out,
                    const float* sums, std::int64_t sums_row, const float* bias) {
    const std::int64_t offset = out.i * product.c_row + out.j;
    if (product.upstream != nullptr) {
      const auto write = product.upstream_type == DataType::kFloat
                             ? WriteGradient<float>
                             : WriteGradient<Element>;
      write(product, out, sums, sums_row, bias);
    } else if (product.output == DataType::kFloat) {
      ApplyEpilogue<Simd, Single<Simd>>(sums, sums_row, out.rows, out.columns,
                                        product.alpha, bias, product.activation,
                                        static_cast<float*>(product.c) + offset,
                                        product.c_row);
    } else {
      ApplyEpilogue<Simd, Format>(sums, sums_row, out.rows, out.columns, product.alpha,
                                  bias, product.activation,
                                  static_cast<Element*>(product.c) + offset,
                                  product.c_row);
    }
  }

  template <class Upstream>
  static void WriteGradient(const Product& product, const keras_mp::Tile& out,
                            const float* sums, std::int64_t sums_row, const float* bias) {
    for (std::int64_t i = 0; i < out.rows; ++i) {
      const std::int64_t row = out.i + i, at = row * product.c_row + out.j;
      ApplyGeluGradientToRow<Simd, Format>(
          sums + i * sums_row, out.columns, product.alpha, bias,
          static_cast<const Upstream*>(product.upstream) + at,
          static_cast<Element*>(product.c) + at, row % kRowsPerSum == 0,
          product.partial_sums + row / kRowsPerSum * product.n + out.j);
    }
  }
};

template <class Simd, class Format>
constexpr GemmKernel kGemmKernel = {
    GemmTile<Simd, Format>::kBlocking,
    GemmTile<Simd, Format>::kPanel,
    GemmTile<Simd, Format>::WorkspaceBytes(),
    GemmTile<Simd, Format>::Tile,
    GemmTile<Simd, Format>::SkinnyTile,
};

template <class Simd>
constexpr GemmKernel kHalfGemm = kGemmKernel<Simd, Half<Simd>>;
template <class Simd>
constexpr GemmKernel kBfloat16Gemm = kGemmKernel<Simd, Bfloat16<Simd>>;
template <class Simd>
constexpr GemmKernel kFloatGemm = kGemmKernel<Simd, Single<Simd>>;

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_GEMM_GEMM_KERNEL_SIMD_H_
