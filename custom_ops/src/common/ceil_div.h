// Integer division that rounds up. Compiles with nvcc, with NVRTC (which has no host
// headers) and as plain C++.

#ifndef KERAS_MP_SRC_COMMON_CEIL_DIV_H_
#define KERAS_MP_SRC_COMMON_CEIL_DIV_H_

#include "common/host_device.h"

namespace keras_mp {

// The smallest integer that is at least a / b, for a >= 0 and b > 0. `static`, as in
// common/half.h.
template <class A, class B>
static KERAS_MP_HOST_DEVICE constexpr auto CeilDiv(A a, B b) {
  return (a + b - 1) / b;
}

// The smallest multiple of b that is at least a.
template <class A, class B>
static KERAS_MP_HOST_DEVICE constexpr auto RoundUp(A a, B b) {
  return CeilDiv(a, b) * b;
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_COMMON_CEIL_DIV_H_
