// The arrays of one call, cut into the tables that a kernel takes as its argument. Plain
// C++.

#ifndef KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_
#define KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "cuda/common/types.h"
#include "keras_mp/update.h"

namespace keras_mp::cuda {

constexpr int kThreads = 256;
// Numbers of a block.
constexpr int kPiece = 16 * kThreads;

// What a kernel is told of one array.
struct CheckEntry {
  Gradient gradient;
  float* to;  // or null
  bool* overflow;
};

struct PairEntry {
  MasterPair pair;
  const float* uniforms;  // or null
};

KERAS_MP_HOST_DEVICE Index SizeOf(const CheckEntry& entry) { return entry.gradient.size; }
KERAS_MP_HOST_DEVICE Index SizeOf(const PairEntry& entry) { return entry.pair.size; }
KERAS_MP_HOST_DEVICE Index SizeOf(const Parameter& entry) { return entry.gradient.size; }

// Some of the arrays: block i works on the last one whose first piece is i or before.
// A kernel's arguments, of which this is most, are at most 4 KB.
template <class Entry>
struct Table {
  static constexpr int kMost = 4000 / (sizeof(Entry) + sizeof(int));

  int count = 0;
  int first_piece[kMost];
  Entry entries[kMost];
};

inline Index PiecesOf(Index size) { return CeilDiv(size, kPiece); }

// Calls launch(table, pieces) for tables of the entries entry(0), ..., entry(count - 1)
// that are not empty, until one returns false.
template <class Entry, class EntryAt, class Launch>
void ForTables(std::int64_t count, const EntryAt& entry, const Launch& launch) {
  constexpr Index kMostPieces = 0x7fffffff;  // of a grid
  Table<Entry> table;
  Index pieces = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Entry next = entry(i);
    const Index more = PiecesOf(SizeOf(next));
    if (more == 0) continue;
    if (table.count == Table<Entry>::kMost || pieces + more > kMostPieces) {
      if (!launch(table, static_cast<int>(pieces))) return;
      table.count = 0;
      pieces = 0;
    }
    table.first_piece[table.count] = static_cast<int>(pieces);
    table.entries[table.count++] = next;
    pieces += more;
  }
  if (table.count > 0) launch(table, static_cast<int>(pieces));
}

}  // namespace keras_mp::cuda

#endif  // KERAS_MP_SRC_CUDA_UPDATE_TENSOR_LIST_H_
