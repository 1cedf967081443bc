// The formats of elements in memory.

#ifndef KERAS_MP_DATA_TYPE_H_
#define KERAS_MP_DATA_TYPE_H_

namespace keras_mp {

enum class DataType { kHalf, kBfloat16, kFloat };

}  // namespace keras_mp

#endif  // KERAS_MP_DATA_TYPE_H_
