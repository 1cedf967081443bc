#include "keras_mp/update_cpu.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/runtime/parallel.h"
#include "cpu/update/kernel.h"

namespace keras_mp {
namespace {

// Numbers of a piece: the sums of squares of the pieces are added up in double.
constexpr std::int64_t kPiece = 1 << 16;

// Some numbers of one of the arrays.
struct Piece {
  std::int64_t array, begin, end;
};

// Cuts `count` arrays into pieces.
template <class SizeOf>
std::vector<Piece> Cut(std::int64_t count, const SizeOf& size_of) {
  std::vector<Piece> pieces;
  for (std::int64_t array = 0; array < count; ++array) {
    const std::int64_t size = size_of(array);
    for (std::int64_t begin = 0; begin < size; begin += kPiece) {
      pieces.push_back({array, begin, std::min(begin + kPiece, size)});
    }
  }
  return pieces;
}

// Calls work(i) for each of the pieces.
template <class Work>
void ForPiecesOf(const Parallel& parallel, const std::vector<Piece>& pieces,
                 const Work& work) {
  std::int64_t numbers = 0;
  for (const Piece& piece : pieces) numbers += piece.end - piece.begin;
  const auto count = static_cast<std::int64_t>(pieces.size());
  ParallelFor(parallel, count, numbers / std::max<std::int64_t>(1, count), work);
}

// Calls work(at, n) for each block of a piece.
template <class Work>
void ForBlocks(const Piece& piece, const Work& work) {
  for (std::int64_t at = piece.begin; at < piece.end; at += kUpdateBlock) {
    work(at, std::min(kUpdateBlock, piece.end - at));
  }
}

const void* At(const Gradient& gradient, std::int64_t index) {
  const std::int64_t bytes = gradient.type == DataType::kFloat ? 4 : 2;
  return static_cast<const char*>(gradient.values) + index * bytes;
}

// For an array that may be missing.
template <class Number>
Number* Offset(Number* array, std::int64_t index) {
  return array ? array + index : nullptr;
}

Status CheckSizes(std::int64_t count, Isa isa) {
  if (count < 0) return {StatusCode::kInvalidArgument, "a count must not be negative"};
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// Un-scales every block into `to(array)`, or where that is null into a buffer.
template <class To>
Status Check(const GradientCheck& check, const To& to, const Parallel& parallel,
             Isa isa) {
  const Status status = CheckSizes(check.count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto pieces =
      Cut(check.count, [&](std::int64_t i) { return check.gradients[i].size; });
  std::vector<double> squares(check.squares ? pieces.size() : 0);
  std::fill_n(check.overflows, check.count, false);
  ForPiecesOf(parallel, pieces, [&](std::int64_t i) {
    const Piece& piece = pieces[i];
    const Gradient& gradient = check.gradients[piece.array];
    float buffer[kUpdateBlock];
    bool is_finite = true;
    ForBlocks(piece, [&](std::int64_t at, std::int64_t n) {
      float* given = Offset(to(piece.array), at);
      float* unscaled = given ? given : buffer;
      is_finite &=
          kernel.unscale(At(gradient, at), gradient.type, n, *check.scale, unscaled);
      if (check.squares) squares[i] += kernel.sum_of_squares(unscaled, n);
    });
    // Other pieces of this gradient may say so at the same time.
    if (!is_finite) {
      __atomic_store_n(&check.overflows[piece.array], true, __ATOMIC_RELAXED);
    }
  });
  if (check.squares) {
    *check.squares =
        static_cast<float>(std::accumulate(squares.begin(), squares.end(), 0.0));
  }
  return {};
}

// Calls work(kernel, piece) for each piece of the pairs.
template <class Work>
Status ForPairs(const MasterPair* pairs, std::int64_t count, const Parallel& parallel,
                Isa isa, const Work& work) {
  const Status status = CheckSizes(count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto pieces = Cut(count, [&](std::int64_t i) { return pairs[i].size; });
  ForPiecesOf(parallel, pieces, [&](std::int64_t i) { work(kernel, pieces[i]); });
  return {};
}

}  // namespace

const UpdateKernel* UpdateKernelOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return Avx512UpdateKernel();
    case Isa::kAvx2:
      return Avx2UpdateKernel();
    case Isa::kNeon:
      return NeonUpdateKernel();
    case Isa::kPortable:
      return PortableUpdateKernel();
    case Isa::kUnknown:
      break;
  }
  return nullptr;
}

Status CheckGradientsCpu(const GradientCheck& check, const Parallel& parallel, Isa isa) {
  const auto nowhere = [](std::int64_t) -> float* { return nullptr; };
  return Check(check, nowhere, parallel, isa);
}

Status UnscaleGradientsCpu(const GradientCheck& check, float* const* to,
                           const Parallel& parallel, Isa isa) {
  return Check(check, [to](std::int64_t i) { return to[i]; }, parallel, isa);
}

Status FollowWeightsCpu(const MasterPair* pairs, std::int64_t count, Rounding rounding,
                        const Parallel& parallel, Isa isa) {
  return ForPairs(pairs, count, parallel, isa, [&](const auto& kernel, const auto& piece) {
    const MasterPair& pair = pairs[piece.array];
    kernel.follow(pair.master + piece.begin, pair.weight + piece.begin, pair.type,
                  piece.end - piece.begin, rounding);
  });
}

Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel, Isa isa) {
  return ForPairs(pairs, count, parallel, isa, [&](const auto& kernel, const auto& piece) {
    const MasterPair& pair = pairs[piece.array];
    kernel.cast(pair.master + piece.begin, pair.weight + piece.begin, pair.type,
                piece.end - piece.begin,
                uniforms ? uniforms[piece.array] + piece.begin : nullptr);
  });
}

Status UpdateCpu(const Update& update, const Parallel& parallel, Isa isa) {
  const Status status = CheckSizes(update.count, isa);
  if (!status.ok() || (update.finite && !*update.finite)) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const UpdateNumbers numbers = *update.numbers;
  auto pieces = Cut(
      update.count, [&](std::int64_t i) { return update.parameters[i].gradient.size; });
  // What the check read last is still in the cache.
  std::reverse(pieces.begin(), pieces.end());
  ForPiecesOf(parallel, pieces, [&](std::int64_t i) {
    const Parameter& parameter = update.parameters[pieces[i].array];
    const Gradient& gradient = parameter.gradient;
    const MasterPair& pair = parameter.pair;
    float g[kUpdateBlock];
    ForBlocks(pieces[i], [&](std::int64_t at, std::int64_t n) {
      float* master = pair.master + at;
      std::uint16_t* weight = Offset(pair.weight, at);
      kernel.unscale(At(gradient, at), gradient.type, n, numbers.scale, g);
      if (weight) kernel.follow(master, weight, pair.type, n, update.rounding);
      float* slots[kMostSlots];
      for (int k = 0; k < kMostSlots; ++k) slots[k] = Offset(parameter.slots[k], at);
      kernel.step(update.rule, numbers, parameter.decays, g, master, slots, n);
      if (weight) {
        kernel.cast(master, weight, pair.type, n, Offset(parameter.uniforms, at));
      }
    });
  });
  return {};
}

}  // namespace keras_mp
