// The variables that an op updates in place.

#ifndef KERAS_MP_TENSORFLOW_COMMON_LOCKED_VARIABLES_H_
#define KERAS_MP_TENSORFLOW_COMMON_LOCKED_VARIABLES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "keras_mp/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/mutex.h"

namespace keras_mp {

// The error of ops that got a variable twice.
absl::Status DuplicateVariable();

// Holds the locks of variables until it is destroyed.
class LockedVariables {
 public:
  // Copies bytes in the memory of the device.
  using Copy = std::function<Status(void* to, const void* from, std::size_t bytes)>;

  // Locks the variables whose handles are the inputs [first, end). A variable must not
  // occur twice.
  absl::Status Lock(tensorflow::OpKernelContext* ctx, int first, int end,
                    const Copy& copy);

  // The value of the variable whose handle is an input. Writing to it does not change
  // values that were read from the variable before.
  tensorflow::Tensor& operator[](int input) {
    return *variables_[input - first_]->tensor();
  }

 private:
  int first_ = 0;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::mutex_lock> locks_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_LOCKED_VARIABLES_H_
