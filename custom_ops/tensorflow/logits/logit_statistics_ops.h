// The classes of KerasMp>LogitStatistics and its gradient: their attributes, checks and
// kernels, the functions of logit_statistics_cpu.h. XLA itself would make a tensor of the
// logits.

#ifndef KERAS_MP_TENSORFLOW_LOGITS_LOGIT_STATISTICS_OPS_H_
#define KERAS_MP_TENSORFLOW_LOGITS_LOGIT_STATISTICS_OPS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/cpu_device.h"
#include "common/op_hooks.h"
#include "keras_mp/logit_statistics_cpu.h"

namespace keras_mp {

// What both ops have in common. Inputs: inputs, kernel, targets, more of the op, and at
// most one bias.
class LogitOp : public OpHooks {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("transpose", &transpose_);
    visit("soft_cap", &soft_cap_);
  }

  absl::Status Complete() {
    if (soft_cap_ >= 0 && std::isfinite(soft_cap_)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "soft_cap must be finite and above 0, or 0 for none. Received: soft_cap=",
        soft_cap_));
  }

  bool transpose() const { return transpose_; }

 protected:
  using TensorShape = tensorflow::TensorShape;

  // The problem of inputs that fit.
  LinearLogits LogitsOf(const Views& inputs, std::size_t first_bias) const {
    const TensorView &x = inputs[0], &kernel = inputs[1], &targets = inputs[2];
    LinearLogits l;
    l.rows = x.shape.dim_size(0);
    l.size = x.shape.dim_size(1);
    l.words = WordsOf(kernel);
    l.type = x.type();
    l.kernel_type = kernel.type();
    l.transpose = transpose_;
    l.soft_cap = soft_cap_;
    l.inputs = x.data;
    l.kernel = kernel.data;
    if (inputs.size() > first_bias) l.bias = inputs[first_bias].As<float>();
    if (targets.dtype == tensorflow::DT_INT32) {
      l.labels = targets.As<std::int32_t>();
    } else {
      l.targets = targets.As<float>();
    }
    return l;
  }

  absl::Status CheckInputs(const Views& inputs, std::size_t first_bias) const {
    const TensorView &x = inputs[0], &kernel = inputs[1], &targets = inputs[2];
    if ((!Has16Bits(x.dtype) && x.dtype != tensorflow::DT_FLOAT) ||
        (kernel.dtype != x.dtype && kernel.dtype != tensorflow::DT_FLOAT)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inputs must be half, bfloat16 or float, and kernel have their dtype, or "
          "float. Received: ",
          DataTypeString(kernel.dtype), " for ", DataTypeString(x.dtype)));
    }
    const bool has_bias = inputs.size() > first_bias;
    const TensorView bias = has_bias ? inputs[first_bias] : TensorView();
    bool fits = x.shape.dims() == 2 && kernel.shape.dims() == 2 &&
                kernel.shape.dim_size(transpose_ ? 1 : 0) == x.shape.dim_size(1) &&
                inputs.size() <= first_bias + 1;
    if (fits) {
      const std::int64_t rows = x.shape.dim_size(0), words = WordsOf(kernel);
      const bool fits_labels = targets.dtype == tensorflow::DT_INT32 &&
                               targets.shape == TensorShape({rows});
      // Without building the shape of `targets`, whose size may not fit into 64 bits.
      const bool fits_targets =
          targets.dtype == tensorflow::DT_FLOAT && targets.shape.dims() == 2 &&
          targets.shape.dim_size(0) == rows && targets.shape.dim_size(1) == words;
      fits = (fits_labels || fits_targets) &&
             (!has_bias || (bias.dtype == tensorflow::DT_FLOAT &&
                            bias.shape == TensorShape({words})));
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "inputs must be [rows, size], kernel [size, words] or with transpose [words, "
        "size], targets [rows] of int32 or [rows, words] of float, and there is at most "
        "one bias [words] of float. Received: inputs.shape=",
        x.shape.DebugString(), ", kernel.shape=", kernel.shape.DebugString(),
        ", targets=", targets.DebugString(), ", ",
        has_bias ? inputs.size() - first_bias : 0, " biases",
        has_bias ? absl::StrCat(", the first ", bias.DebugString()) : "",
        ", transpose=", transpose_));
  }

 private:
  std::int64_t WordsOf(const TensorView& kernel) const {
    return kernel.shape.dim_size(transpose_ ? 0 : 1);
  }

  bool transpose_ = false;
  float soft_cap_ = 0;
};

// Inputs: those of LogitOp.
class LogitStatisticsOp : public LogitOp {
 public:
  static constexpr char kName[] = "KerasMp>LogitStatistics";
  static constexpr char kCall[] = "keras_mp.logit_statistics";
  static constexpr int kMinInputs = 3, kMaxInputs = 4;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, kFirstBias));
    const TensorView row = {tensorflow::DT_FLOAT,
                            TensorShape({inputs[0].shape.dim_size(0)})};
    return Views{row, row, row, {tensorflow::DT_INT32, row.shape}};
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    const LogitStatistics statistics = {outputs[0].As<float>(), outputs[1].As<float>(),
                                        outputs[2].As<float>(),
                                        outputs[3].As<std::int32_t>()};
    return LogitStatisticsCpu(LogitsOf(inputs, kFirstBias), statistics, device.threads());
  }

  bool HasBatch(int input) const { return input != 1 && input != kFirstBias; }
  bool ResultHasBatch(int) const { return true; }

 private:
  static constexpr int kFirstBias = 3;
};

// Inputs: inputs, kernel, targets, logsumexp, the gradients of the first three results,
// and at most one bias. Outputs: the gradients of inputs, kernel and bias.
class LogitStatisticsGradientOp : public LogitOp {
 public:
  static constexpr char kName[] = "KerasMp>LogitStatisticsGradient";
  static constexpr char kCall[] = "keras_mp.logit_statistics_gradient";
  static constexpr int kMinInputs = 7, kMaxInputs = 8;

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, kFirstBias));
    const TensorShape rows({inputs[0].shape.dim_size(0)});
    for (int i = 3; i < kFirstBias; ++i) {
      TF_RETURN_IF_ERROR(
          CheckTensor("logsumexp, and each gradient of a result,", inputs[i],
                      tensorflow::DT_FLOAT, rows));
    }
    Views grads = {{inputs[0].dtype, inputs[0].shape}, {inputs[1].dtype, inputs[1].shape}};
    if (inputs.size() > kFirstBias) {
      grads.push_back({tensorflow::DT_FLOAT, inputs[kFirstBias].shape});
    }
    return grads;
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    const LogitStatisticsGradient gradient = {
        inputs[3].As<float>(), inputs[4].As<float>(), inputs[5].As<float>(),
        inputs[6].As<float>(), outputs[0].data,       outputs[1].data,
        outputs.size() > 2 ? outputs[2].As<float>() : nullptr};
    return LogitStatisticsGradientCpu(LogitsOf(inputs, kFirstBias), gradient,
                                      device.threads());
  }

  bool HasBatch(int input) const { return input != 1 && input != kFirstBias; }
  bool ResultHasBatch(int output) const { return output == 0; }

 private:
  static constexpr int kFirstBias = 7;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_LOGITS_LOGIT_STATISTICS_OPS_H_
