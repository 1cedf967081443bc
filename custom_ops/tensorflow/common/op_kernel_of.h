// The OpKernel of an op's class: it reads the attributes, locks the variables, allocates
// the outputs and runs the kernel.

#ifndef KERAS_MP_TENSORFLOW_COMMON_OP_KERNEL_OF_H_
#define KERAS_MP_TENSORFLOW_COMMON_OP_KERNEL_OF_H_

#include <cstddef>

#include "common/locked_variables.h"
#include "common/tensor_view.h"
#include "common/visit_attributes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

template <class Op, class Device>
class OpKernelOf : public tensorflow::OpKernel {
 public:
  explicit OpKernelOf(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &op_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tensorflow::OpKernelContext* ctx) const {
    const Device device(ctx);
    const auto [first, end] = op_.Variables();
    LockedVariables variables;
    if (first < end) {
      const auto copy = [&](void* to, const void* from, std::size_t bytes) {
        return device.Copy(to, from, bytes);
      };
      TF_RETURN_IF_ERROR(variables.Lock(ctx, first, end, copy));
    }
    Views inputs;
    inputs.reserve(ctx->num_inputs());
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const bool is_variable = first <= i && i < end;
      inputs.push_back(ViewOf(is_variable ? variables[i] : ctx->input(i)));
    }
    auto outputs = op_.Outputs(inputs);
    TF_RETURN_IF_ERROR(outputs.status());
    for (int i = 0; i < static_cast<int>(outputs->size()); ++i) {
      TF_RETURN_IF_ERROR(Allocate(ctx, i, &(*outputs)[i]));
    }
    return ToAbsl(op_.Run(device, inputs, *outputs));
  }

  absl::Status Allocate(tensorflow::OpKernelContext* ctx, int output,
                        TensorView* view) const {
    tensorflow::Tensor* tensor;
    const int input = op_.ForwardedInput(output);
    TF_RETURN_IF_ERROR(input < 0 ? ctx->allocate_output(output, view->shape, &tensor)
                                 : ctx->forward_input_or_allocate_output(
                                       {input}, output, view->shape, &tensor));
    view->data = tensor->data();
    return absl::OkStatus();
  }

  Op op_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_OP_KERNEL_OF_H_
