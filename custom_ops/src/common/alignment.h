// The alignment of an array in memory.

#ifndef KERAS_MP_SRC_COMMON_ALIGNMENT_H_
#define KERAS_MP_SRC_COMMON_ALIGNMENT_H_

#include <cstdint>

namespace keras_mp {

// The largest power of two, up to `most` bytes, that divides the address `pointer` and
// each of the distances in bytes whose bits are set in `strides`.
inline std::uint32_t AlignmentOf(const void* pointer, std::uint32_t most,
                                 std::uint64_t strides = 0) {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(pointer) | strides | most;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_ALIGNMENT_H_
