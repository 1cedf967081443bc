// Lists of contiguous arrays, cut into chunks for threads, and those into blocks.

#ifndef KERAS_MP_SRC_CPU_UPDATE_CHUNKS_H_
#define KERAS_MP_SRC_CPU_UPDATE_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/runtime/parallel.h"
#include "cpu/update/update_kernel.h"
#include "keras_mp/update.h"

namespace keras_mp {

// Elements of a chunk. The sums of squares of its blocks, and of all chunks, are added up
// in double.
constexpr std::int64_t kChunkSize = 1 << 16;
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

inline const void* At(const Gradient& gradient, std::int64_t index) {
  const std::int64_t bytes = gradient.type == DataType::kFloat ? 4 : 2;
  return static_cast<const char*>(gradient.values) + index * bytes;
}

// array + index, or null where there is no array.
template <class Number>
Number* Offset(Number* array, std::int64_t index) {
  return array ? array + index : nullptr;
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_CHUNKS_H_
