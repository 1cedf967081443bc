// Checks of a product's arguments, and its batch, for every device.

#include "keras_mp/gemm.h"

#include <limits>

namespace keras_mp {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// Whether `count` matrices of `rows` rows span less than 2^63 bytes.
bool IsAddressable(std::int64_t rows, std::int64_t row_stride, std::int64_t count,
                   std::int64_t stride) {
  constexpr std::int64_t kLargestOffset = kLargest / 16;
  if (rows > 0 && row_stride > kLargestOffset / rows) return false;
  return count == 0 || stride <= kLargestOffset / count;
}

Status Invalid(const char* message) { return {StatusCode::kInvalidArgument, message}; }

}  // namespace

Status Validate(const Gemm& g) {
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0) {
    return Invalid("a size is negative");
  }
  if (g.output != g.input && g.output != DataType::kFloat) {
    return Invalid("the output must have the type of the inputs, or FP32");
  }
  if (g.bias != nullptr && g.bias_type != g.input && g.bias_type != DataType::kFloat) {
    return Invalid("the bias must have the type of the inputs, or FP32");
  }
  if (g.upstream != nullptr) {
    if (g.upstream_type != g.input && g.upstream_type != DataType::kFloat) {
      return Invalid("the upstream gradient must have the type of the inputs, or FP32");
    }
    if (g.activation != Activation::kGelu || g.output != g.input) {
      return Invalid("a gradient must be that of gelu, in the type of the inputs");
    }
    if (g.column_sums == nullptr) return Invalid("the sums of a gradient are null");
  }
  const std::int64_t rows_a = g.transpose_a ? g.k : g.m;
  const std::int64_t rows_b = g.transpose_b ? g.n : g.k;
  if (g.lda < (g.transpose_a ? g.m : g.k) || g.ldb < (g.transpose_b ? g.k : g.n) ||
      g.ldc < g.n) {
    return Invalid("a row is longer than the distance to the next");
  }
  if (g.stride_a < 0 || g.stride_b < 0 || g.stride_c < 0) {
    return Invalid("a stride is negative");
  }
  if (!IsAddressable(rows_a, g.lda, g.batch, g.stride_a) ||
      !IsAddressable(rows_b, g.ldb, g.batch, g.stride_b) ||
      !IsAddressable(g.m, g.ldc, g.batch, g.stride_c)) {
    return Invalid("a matrix is too large to address");
  }
  const bool writes = g.m > 0 && g.n > 0 && g.batch > 0;
  if (writes && g.c == nullptr) return Invalid("C is null");
  if (writes && g.k > 0 && (g.a == nullptr || g.b == nullptr)) {
    return Invalid("A or B is null");
  }
  return {};
}

Gemm FoldBatch(const Gemm& g) {
  const bool shares_b = g.stride_b == 0 && !g.transpose_a;
  const bool no_gaps = g.stride_a == g.m * g.lda && g.stride_c == g.m * g.ldc;
  if (g.batch <= 1 || !shares_b || !no_gaps) return g;
  Gemm folded = g;
  folded.m = g.m * g.batch;
  folded.batch = 1;
  folded.stride_a = folded.stride_c = 0;
  return folded;
}

}  // namespace keras_mp
