// The random numbers of the update step: a hash of an element's index, so that every
// device draws the same ones, in any order. `Machine` is that of common/update_formulas.h.

#ifndef KERAS_MP_SRC_COMMON_NOISE_H_
#define KERAS_MP_SRC_COMMON_NOISE_H_

#include <cstdint>

#include "common/host_device.h"
#include "common/mix.h"
#include "keras_mp/update.h"

namespace keras_mp {

// The random numbers of one step in one of its streams: that of a slot, or of the weights
// without a master, which is kMostSlots.
template <class Machine>
class Noise {
 public:
  using Float = typename Machine::Float;
  using Words = typename Machine::Words;

  KERAS_MP_HOST_DEVICE Noise(const UpdateHyperparameters& u, int stream)
      : start_((static_cast<std::uint32_t>(u.noise_high) << 16) +
               static_cast<std::uint32_t>(u.noise_low) +
               static_cast<std::uint32_t>(stream) * 0x9e3779b9u) {}

  // 32 random bits for the element of an index modulo 2^32.
  KERAS_MP_HOST_DEVICE Words Bits(Words index) const { return Mix<Words>(index + start_); }

  // A number from [0, 1), a multiple of 2^-24.
  KERAS_MP_HOST_DEVICE Float Uniform(Words index) const {
    return Machine::ToFloat(Machine::AsInts(Bits(index) >> 8)) * 0x1p-24f;
  }

 private:
  std::uint32_t start_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_NOISE_H_
