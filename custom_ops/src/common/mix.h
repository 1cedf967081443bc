// The hash of 32 bits from which the random numbers of this library are made.

#ifndef KERAS_MP_SRC_COMMON_MIX_H_
#define KERAS_MP_SRC_COMMON_MIX_H_

#include "common/host_device.h"

namespace keras_mp {

// A bijection of 32 bits whose every output bit looks random: the mixer "lowbias32" of
// Chris Wellons' "Prospecting for Hash Functions". `Words` is std::uint32_t or a vector
// of it. `static`, as in common/half.h.
template <class Words>
static KERAS_MP_HOST_DEVICE Words Mix(Words x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_MIX_H_
