// A matrix of partial sums [rows, size] in FP32. ok() is false without memory.

#ifndef KERAS_MP_SRC_CPU_RUNTIME_PARTIAL_SUMS_H_
#define KERAS_MP_SRC_CPU_RUNTIME_PARTIAL_SUMS_H_

#include <cstdint>
#include <memory>
#include <new>

namespace keras_mp {

class PartialSums {
 public:
  PartialSums(std::int64_t rows, std::int64_t size)
      : size_(size), numbers_(new (std::nothrow) float[rows * size + 1]) {}

  bool ok() const { return numbers_ != nullptr; }
  float* operator[](std::int64_t row) { return numbers_.get() + row * size_; }

 private:
  std::int64_t size_;
  std::unique_ptr<float[]> numbers_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_RUNTIME_PARTIAL_SUMS_H_
