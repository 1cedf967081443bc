// The classes of KerasMp>Fp16Gemm and KerasMp>Fp16GemmGeluGradient: their attributes,
// checks and kernels, the functions of gemm_cpu.h and gemm_cuda.h.

#ifndef KERAS_MP_TENSORFLOW_GEMM_GEMM_OP_H_
#define KERAS_MP_TENSORFLOW_GEMM_GEMM_OP_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "common/op_hooks.h"
#include "keras_mp/gemm_cpu.h"

namespace keras_mp {

class CpuDevice;
class GpuDevice;

// In gemm_op_gpu.cc.
Status MultiplyOnGpu(const GpuDevice& device, const Gemm& gemm);

// Inputs: a, b, alpha, and at most one bias.
class Fp16GemmOp : public OpHooks {
 public:
  static constexpr char kName[] = "KerasMp>Fp16Gemm";
  static constexpr char kCall[] = "keras_mp.gemm";
  static constexpr int kMinInputs = 3, kMaxInputs = 4;

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("transpose_a", &transpose_a_);
    visit("transpose_b", &transpose_b_);
    visit("activation", &activation_);
  }

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    return ctx->GetAttr("Tout", &type_of_c_);
  }

  void ReadCall(const Views&, const Views& results) {
    if (!results.empty()) type_of_c_ = results[0].dtype;
  }

  absl::Status Complete() const;

  bool transpose_a() const { return transpose_a_; }
  bool transpose_b() const { return transpose_b_; }
  const std::string& activation() const { return activation_; }

  // The size over which products of a are summed.
  std::int64_t InnerSize(const tensorflow::TensorShape& a) const {
    return a.dim_size(a.dims() - (transpose_a_ ? 2 : 1));
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    return Result(inputs, type_of_c_);
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views& outputs) const {
    for (const Gemm& part : PartsOf(inputs, outputs[0])) {
      Status status;
      if constexpr (Device::kIsCpu) {
        status = GemmCpu(part, device.threads());
      } else {
        status = MultiplyOnGpu(device, part);
      }
      if (!status.ok()) return status;
    }
    return {};
  }

 protected:
  bool transpose_a_ = false, transpose_b_ = false;

  // The product of inputs that fit.
  absl::StatusOr<Views> Result(const Views& inputs, tensorflow::DataType type_of_c) const;

  // The products of a broadcast batch, as calls of the kernel with constant strides.
  absl::InlinedVector<Gemm, 1> PartsOf(const Views& inputs, const TensorView& c) const;

 private:
  std::string activation_;
  tensorflow::DataType type_of_c_ = tensorflow::DT_INVALID;
};

// Inputs: those of the product, then the upstream gradient. Outputs: the gradient of
// alpha * op(a) op(b) + bias, in the dtype of a, and its sums over all rows, in FP32.
class Fp16GemmGeluGradientOp : public Fp16GemmOp {
 public:
  static constexpr char kName[] = "KerasMp>Fp16GemmGeluGradient";
  static constexpr char kCall[] = "keras_mp.fp16_gemm_gelu_gradient";
  static constexpr int kMinInputs = 4, kMaxInputs = 5;

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("transpose_a", &transpose_a_);
    visit("transpose_b", &transpose_b_);
  }

  template <class Context>
  absl::Status ReadOp(Context*) {
    return absl::OkStatus();
  }
  void ReadCall(const Views&, const Views&) {}

  absl::StatusOr<Views> Outputs(const Views& inputs) const;

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const;

 private:
  static Views OfProduct(const Views& inputs) {
    return {inputs.begin(), inputs.end() - 1};
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_GEMM_GEMM_OP_H_
