// The shape of a packed tensor that is reduced over all dimensions but the channels.

#ifndef KERAS_MP_CHANNEL_SHAPE_H_
#define KERAS_MP_CHANNEL_SHAPE_H_

#include <cstdint>

namespace keras_mp {

struct ChannelShape {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;
};

}  // namespace keras_mp

#endif  // KERAS_MP_CHANNEL_SHAPE_H_
