// The base class of the op kernels of KerasMp>Fp16Gemm for CPU and GPU: converts tensors
// to the struct of gemm.h.

#ifndef KERAS_MP_TENSORFLOW_GEMM_OP_KERNEL_H_
#define KERAS_MP_TENSORFLOW_GEMM_OP_KERNEL_H_

#include <cstdint>
#include <string>

#include "keras_mp/gemm.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace keras_mp {

// The shape of c: the broadcast leading dimensions of a and b, then m and n.
absl::Status ProductShape(const tensorflow::TensorShape& a,
                          const tensorflow::TensorShape& b, std::int64_t m,
                          std::int64_t n, tensorflow::TensorShape* c);

class Fp16GemmOp : public tensorflow::OpKernel {
 public:
  explicit Fp16GemmOp(tensorflow::OpKernelConstruction* ctx);

  void Compute(tensorflow::OpKernelContext* ctx) override;

 protected:
  // Computes one product, or several at constant strides.
  virtual Status Multiply(tensorflow::OpKernelContext* ctx, const Gemm& gemm) = 0;

 private:
  bool transpose_a_, transpose_b_;
  Activation activation_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_GEMM_OP_KERNEL_H_
