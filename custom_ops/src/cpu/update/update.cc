// The update step of keras_mp/update.h on a CPU: lists of contiguous arrays are cut into
// chunks, which are distributed over threads, and chunks into blocks, on which the
// functions of cpu/update/update_kernel.h compute the formulas. Nothing is expanded but a
// block at a time.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#include "keras_mp/update_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "common/half.h"
#include "common/update_forms.h"
#include "cpu/runtime/parallel.h"
#include "cpu/update/update_kernel.h"

namespace keras_mp {
namespace {

// Elements of a chunk. The sums of squares of its blocks, and of all chunks, are added up
// in double.
constexpr std::int64_t kChunkSize = 1 << 16;
// From so many un-scaled gradients on they are written past the caches, which could not
// hold them until they are read: 32 MiB.
constexpr std::int64_t kStreamedSize = 1 << 23;
static_assert(kChunkSize % kUpdateBlock == 0 && kUpdateBlock % kSlotGroup == 0,
              "no group of a slot is in two blocks");

// The elements [begin, end) of one of the arrays.
struct Chunk {
  std::int64_t array, begin, end;
};

// Cuts `count` arrays of size_of(i) elements into chunks.
template <class SizeOf>
std::vector<Chunk> Cut(std::int64_t count, const SizeOf& size_of) {
  std::vector<Chunk> chunks;
  for (std::int64_t array = 0; array < count; ++array) {
    const std::int64_t size = size_of(array);
    for (std::int64_t begin = 0; begin < size; begin += kChunkSize) {
      chunks.push_back({array, begin, std::min(begin + kChunkSize, size)});
    }
  }
  return chunks;
}

// Calls work(i) for each of the chunks.
template <class Work>
void ForChunks(const Parallel& parallel, const std::vector<Chunk>& chunks,
                 const Work& work) {
  std::int64_t elements = 0;
  for (const Chunk& chunk : chunks) elements += chunk.end - chunk.begin;
  const auto count = static_cast<std::int64_t>(chunks.size());
  ParallelFor(parallel, count, elements / std::max<std::int64_t>(1, count), work);
}

// Calls work(at, n) for each block of a chunk.
template <class Work>
void ForBlocks(const Chunk& chunk, const Work& work) {
  for (std::int64_t at = chunk.begin; at < chunk.end; at += kUpdateBlock) {
    work(at, std::min(kUpdateBlock, chunk.end - at));
  }
}

const void* At(const Gradient& gradient, std::int64_t index) {
  const std::int64_t bytes = gradient.type == DataType::kFloat ? 4 : 2;
  return static_cast<const char*>(gradient.values) + index * bytes;
}

// array + index, or null where there is no array.
template <class Number>
Number* Offset(Number* array, std::int64_t index) {
  return array ? array + index : nullptr;
}

Status CheckSizes(std::int64_t count, Isa isa) {
  if (count < 0) return {StatusCode::kInvalidArgument, "a count must not be negative"};
  if (!IsSupported(isa)) return kUnsupportedIsa;
  return {};
}

// Un-scales array i into to(i), or where that is null block by block into a buffer.
template <class To>
Status Check(const GradientCheck& check, const To& to, const Parallel& parallel,
             Isa isa) {
  const Status status = CheckSizes(check.count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto size_of = [&](std::int64_t i) { return check.gradients[i].size; };
  const auto chunks = Cut(check.count, size_of);
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < check.count; ++i) elements += size_of(i);
  const bool streams = elements >= kStreamedSize;
  std::vector<std::int32_t> largest(chunks.size());
  std::vector<double> sums(check.sum_of_squares ? chunks.size() : 0);
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const Chunk& chunk = chunks[i];
    const Gradient& gradient = check.gradients[chunk.array];
    float buffer[kUpdateBlock];
    std::int32_t most = 0;
    ForBlocks(chunk, [&](std::int64_t at, std::int64_t n) {
      float* given = Offset(to(chunk.array), at);
      float* unscaled = given && !streams ? given : buffer;
      most = std::max(most, kernel.unscale(At(gradient, at), gradient.type, n,
                                           *check.scale, unscaled));
      if (check.sum_of_squares) sums[i] += kernel.sum_of_squares(unscaled, n);
      if (given && streams) kernel.stream(unscaled, n, given);
    });
    if (streams) std::atomic_thread_fence(std::memory_order_seq_cst);
    largest[i] = most;
  });
  std::vector<std::int32_t> of_array(check.count);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    std::int32_t& most = of_array[chunks[i].array];
    most = std::max(most, largest[i]);
  }
  for (std::int64_t i = 0; i < check.count; ++i) {
    check.largest[i] = FromBits(static_cast<std::uint32_t>(of_array[i]));
  }
  if (check.sum_of_squares) {
    *check.sum_of_squares =
        static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0));
  }
  return {};
}

// Calls work(kernel, chunk) for each chunk of the pairs.
template <class Work>
Status ForPairs(const MasterPair* pairs, std::int64_t count, const Parallel& parallel,
                Isa isa, const Work& work) {
  const Status status = CheckSizes(count, isa);
  if (!status.ok()) return status;
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  const auto chunks = Cut(count, [&](std::int64_t i) { return pairs[i].size; });
  ForChunks(parallel, chunks, [&](std::int64_t i) { work(kernel, chunks[i]); });
  return {};
}

// The sums that the norms of kLamb are the roots of.
struct Squares {
  double of_master = 0;
  double of_direction = 0;

  Squares& operator+=(const Squares& other) {
    of_master += other.of_master;
    of_direction += other.of_direction;
    return *this;
  }

  // The rate at which a master moves.
  float Rate(float learning_rate) const {
    const float master = std::sqrt(static_cast<float>(of_master));
    const float direction = std::sqrt(static_cast<float>(of_direction));
    const bool has_ratio = master > 0 && direction > 0;
    return (has_ratio ? master / direction : 1.0f) * learning_rate;
  }
};

// The step of one variable, block by block. What is compressed is expanded into buffers;
// what is not is updated where it is.
class UpdateOfBlocks {
 public:
  UpdateOfBlocks(const Update& update, const Parameter& parameter,
                 const UpdateKernel& kernel)
      : update_(update),
        parameter_(parameter),
        pair_(parameter.pair),
        u_(*update.hyperparameters),
        kernel_(kernel) {}

  void operator()(std::int64_t at, std::int64_t n) const {
    float g[kUpdateBlock], master_buffer[kUpdateBlock];
    float slot_buffers[kMostSlots][kUpdateBlock];
    ReadGradient(at, n, g);
    float* const master = ReadMaster(at, n, master_buffer);
    float* slots[kMostSlots];
    for (int k = 0; k < kMostSlots; ++k) slots[k] = ReadSlot(k, at, n, slot_buffers[k]);
    kernel_.step(update_.rule, u_, parameter_.apply_weight_decay, g,
                 Offset(parameter_.powers, at), master, slots, n);
    for (int k = 0; k < kMostSlots; ++k) WriteSlot(k, at, n, slots[k]);
    WriteMaster(at, n, master);
  }

  // The first pass of kLamb.
  void StepLambSlots(std::int64_t at, std::int64_t n, Squares& squares) const {
    float g[kUpdateBlock], master_buffer[kUpdateBlock], of_block[2];
    ReadGradient(at, n, g);
    float* const slots[] = {parameter_.slots[0].values + at,
                            parameter_.slots[1].values + at};
    kernel_.lamb_slots(u_, parameter_.apply_weight_decay, g,
                       ReadMaster(at, n, master_buffer), slots, n, of_block);
    squares.of_master += of_block[0];
    squares.of_direction += of_block[1];
  }

  // The second pass.
  void StepLambMaster(std::int64_t at, std::int64_t n, float rate) const {
    float master_buffer[kUpdateBlock];
    float* const master = ReadMaster(at, n, master_buffer);
    const float* const slots[] = {parameter_.slots[0].values + at,
                                  parameter_.slots[1].values + at};
    kernel_.lamb_masters(u_, parameter_.apply_weight_decay, rate, master, slots, n);
    WriteMaster(at, n, master);
  }

 private:
  void ReadGradient(std::int64_t at, std::int64_t n, float* to) const {
    const Gradient& gradient = parameter_.gradient;
    kernel_.unscale(At(gradient, at), gradient.type, n, u_.scale, to);
  }

  float* ReadMaster(std::int64_t at, std::int64_t n, float* buffer) const {
    float* const master = Offset(pair_.master, at);
    const std::uint16_t* const weight = Offset(pair_.weight, at);
    if (pair_.remainder) {
      kernel_.join(weight, pair_.remainder + at, pair_.type, n, buffer);
    } else if (!master) {
      kernel_.unscale(weight, pair_.type, n, 1, buffer);
    } else if (weight) {
      kernel_.sync_masters(master, weight, pair_.type, n, update_.rounding);
    }
    return master ? master : buffer;
  }

  void WriteMaster(std::int64_t at, std::int64_t n, const float* master) const {
    std::uint16_t* const weight = Offset(pair_.weight, at);
    if (pair_.remainder) {
      kernel_.split(master, pair_.type, n, weight, pair_.remainder + at);
    } else if (!pair_.master) {
      kernel_.cast_with_noise(master, weight, pair_.type, n, Low(at), u_);
    } else if (weight) {
      kernel_.cast(master, weight, pair_.type, n, Offset(parameter_.uniforms, at));
    }
  }

  float* ReadSlot(int k, std::int64_t at, std::int64_t n, float* buffer) const {
    const Slot& slot = parameter_.slots[k];
    if (!slot.codes) return Offset(slot.values, at);
    kernel_.decode(SlotCodeOf(update_.rule, k), slot.codes + at,
                   slot.exponents + at / kSlotGroup, n, buffer);
    return buffer;
  }

  void WriteSlot(int k, std::int64_t at, std::int64_t n, const float* values) const {
    const Slot& slot = parameter_.slots[k];
    if (!slot.codes) return;
    kernel_.encode(SlotCodeOf(update_.rule, k), values, n, Low(at), u_, k,
                   slot.codes + at, slot.exponents + at / kSlotGroup);
  }

  static std::uint32_t Low(std::int64_t index) {
    return static_cast<std::uint32_t>(index);
  }

  const Update& update_;
  const Parameter& parameter_;
  const MasterPair& pair_;
  const UpdateHyperparameters u_;
  const UpdateKernel& kernel_;
};

// The step of kLamb: a pass for the norms, and one for the masters. A variable of one chunk
// takes the second while it is in the cache.
void UpdateLamb(const Update& update, std::vector<Chunk> chunks,
                const Parallel& parallel, const UpdateKernel& kernel) {
  const auto of_blocks = [&](const Chunk& chunk) {
    return UpdateOfBlocks(update, update.parameters[chunk.array], kernel);
  };
  const auto move = [&](const Chunk& chunk, const Squares& squares) {
    const UpdateOfBlocks blocks = of_blocks(chunk);
    const float rate = squares.Rate(update.hyperparameters->learning_rate);
    ForBlocks(chunk, [&](std::int64_t at, std::int64_t n) {
      blocks.StepLambMaster(at, n, rate);
    });
  };
  const auto is_whole = [&](const Chunk& chunk) {
    return chunk.end - chunk.begin == update.parameters[chunk.array].gradient.size;
  };
  std::vector<Squares> of_chunks(chunks.size());
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const UpdateOfBlocks blocks = of_blocks(chunks[i]);
    ForBlocks(chunks[i], [&](std::int64_t at, std::int64_t n) {
      blocks.StepLambSlots(at, n, of_chunks[i]);
    });
    if (is_whole(chunks[i])) move(chunks[i], of_chunks[i]);
  });
  std::vector<Squares> of_arrays(update.count);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    of_arrays[chunks[i].array] += of_chunks[i];
  }
  chunks.erase(std::remove_if(chunks.begin(), chunks.end(), is_whole), chunks.end());
  // The last chunks first: the first pass has left them in the cache.
  std::reverse(chunks.begin(), chunks.end());
  ForChunks(parallel, chunks,
            [&](std::int64_t i) { move(chunks[i], of_arrays[chunks[i].array]); });
}

}  // namespace

const UpdateKernel* UpdateKernelOf(Isa isa) {
  switch (isa) {
    case Isa::kAmxFp16:
    case Isa::kAmxBf16:
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

Status SyncMastersFromWeightsCpu(const MasterPair* pairs, std::int64_t count,
                                 Rounding rounding, const Parallel& parallel, Isa isa) {
  const auto work = [&](const UpdateKernel& kernel, const Chunk& chunk) {
    const MasterPair& pair = pairs[chunk.array];
    kernel.sync_masters(pair.master + chunk.begin, pair.weight + chunk.begin, pair.type,
                        chunk.end - chunk.begin, rounding);
  };
  return ForPairs(pairs, count, parallel, isa, work);
}

Status CastMastersCpu(const MasterPair* pairs, std::int64_t count,
                      const float* const* uniforms, const Parallel& parallel, Isa isa) {
  const auto work = [&](const UpdateKernel& kernel, const Chunk& chunk) {
    const MasterPair& pair = pairs[chunk.array];
    kernel.cast(pair.master + chunk.begin, pair.weight + chunk.begin, pair.type,
                chunk.end - chunk.begin,
                uniforms ? uniforms[chunk.array] + chunk.begin : nullptr);
  };
  return ForPairs(pairs, count, parallel, isa, work);
}

Status UpdateCpu(const Update& update, const Parallel& parallel, Isa isa) {
  const Status status = CheckSizes(update.count, isa);
  if (!status.ok() || (update.finite && !*update.finite)) return status;
  const Status forms = CheckForms(update);
  if (!forms.ok()) return forms;
  auto chunks = Cut(
      update.count, [&](std::int64_t i) { return update.parameters[i].gradient.size; });
  // The last chunks first: the check has left them in the cache.
  std::reverse(chunks.begin(), chunks.end());
  const UpdateKernel& kernel = *UpdateKernelOf(isa);
  if (NeedsNorms(update.rule)) {
    UpdateLamb(update, std::move(chunks), parallel, kernel);
    return {};
  }
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const UpdateOfBlocks of_blocks(update, update.parameters[chunks[i].array], kernel);
    ForBlocks(chunks[i], of_blocks);
  });
  return {};
}

}  // namespace keras_mp
