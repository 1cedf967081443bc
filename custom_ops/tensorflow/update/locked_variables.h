// The variables that an op updates in place.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_LOCKED_VARIABLES_H_
#define KERAS_MP_TENSORFLOW_UPDATE_LOCKED_VARIABLES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "keras_mp/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/mutex.h"

namespace keras_mp {

// Holds the locks of variables until it is destroyed.
class LockedVariables {
 public:
  // Copies bytes in the memory of the device.
  using Copy = std::function<Status(void* to, const void* from, std::size_t bytes)>;

  // Locks the variables whose handles are these inputs. A variable must not occur twice.
  absl::Status Lock(tensorflow::OpKernelContext* ctx, const std::vector<int>& inputs,
                    const Copy& copy);

  // The value of the variable whose handle is an input. Writing to it does not change
  // values that were read from the variable before.
  tensorflow::Tensor& operator[](int input) { return *tensors_[input]; }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::mutex_lock> locks_;
  std::vector<tensorflow::Tensor*> tensors_;  // by input
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_LOCKED_VARIABLES_H_
