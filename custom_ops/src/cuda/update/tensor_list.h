// Lists of arrays as kernel arguments: each kernel launch of the update step works on all
// chunks of a TensorList. Plain C++.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_
#define KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cuda/common/types.h"
#include "keras_mp/update.h"

namespace keras_mp::cuda {

constexpr int kThreads = 256;
// Elements of a chunk, which a block works on.
constexpr int kChunkSize = 16 * kThreads;

// The entries of the lists. Those of the update itself are UpdateEntries where no variable
// is compressed, else Parameters, which are larger.
struct CheckEntry {
  Gradient gradient;
  float* to;  // the un-scaled gradient, or null
  float* largest;
};

struct PairEntry {
  MasterPair pair;
  const float* uniforms;  // or null
};

struct UpdateEntry {
  Gradient gradient;
  float* slots[kMostSlots];
  bool apply_weight_decay;
  MasterPair pair;
  const float* uniforms;  // or null
};

inline UpdateEntry AsEntry(const Parameter& parameter) {
  UpdateEntry entry = {parameter.gradient, {}, parameter.apply_weight_decay,
                       parameter.pair, parameter.uniforms};
  for (int k = 0; k < kMostSlots; ++k) entry.slots[k] = parameter.slots[k].values;
  return entry;
}

KERAS_MP_HOST_DEVICE Index SizeOf(const CheckEntry& entry) { return entry.gradient.size; }
KERAS_MP_HOST_DEVICE Index SizeOf(const PairEntry& entry) { return entry.pair.size; }
KERAS_MP_HOST_DEVICE Index SizeOf(const UpdateEntry& entry) {
  return entry.gradient.size;
}
KERAS_MP_HOST_DEVICE Index SizeOf(const Parameter& entry) { return entry.gradient.size; }

// Arrays, none of them empty, cut into chunks that are numbered through: array i has the
// chunks from first_chunk[i] to before first_chunk[i + 1]. Block b of the grid works on
// chunk b, and finds the array by a binary search in first_chunk. The size is limited as
// the arguments of a kernel must not exceed 4 KB.
template <class Entry>
struct TensorList {
  static constexpr int kMaxCount = 4000 / (sizeof(Entry) + sizeof(int));

  int count = 0;
  int first_chunk[kMaxCount];
  Entry entries[kMaxCount];
};

inline Index ChunksOf(Index size) { return CeilDiv(size, kChunkSize); }

// Puts the arrays entry(0), ..., entry(count - 1) into as many lists as they need, and
// calls launch(list, chunks) for each list until a call returns false.
template <class Entry, class EntryAt, class Launch>
void ForTensorLists(std::int64_t count, const EntryAt& entry, const Launch& launch) {
  constexpr Index kMaxChunks = 0x7fffffff;  // blocks of a grid
  TensorList<Entry> list;
  Index chunks = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Entry next = entry(i);
    const Index more = ChunksOf(SizeOf(next));
    if (more == 0) continue;
    if (list.count == TensorList<Entry>::kMaxCount || chunks + more > kMaxChunks) {
      if (!launch(list, static_cast<int>(chunks))) return;
      list.count = 0;
      chunks = 0;
    }
    list.first_chunk[list.count] = static_cast<int>(chunks);
    list.entries[list.count++] = next;
    chunks += more;
  }
  if (list.count > 0) launch(list, static_cast<int>(chunks));
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_
