// The classes of KerasMp>SyncMastersFromWeights and KerasMp>CastMasters.

#ifndef KERAS_MP_TENSORFLOW_UPDATE_MASTER_OPS_H_
#define KERAS_MP_TENSORFLOW_UPDATE_MASTER_OPS_H_

#include <utility>
#include <vector>

#include "common/op_hooks.h"
#include "keras_mp/update_cpu.h"
#include "keras_mp/update_cuda.h"
#include "update/tensors.h"

namespace keras_mp {

// What both ops have in common. Inputs: the variables masters and weights, then more.
class MastersOp : public OpHooks {
 public:
  static constexpr int kMinInputs = 2;

  static std::vector<const char*> HostInputs() { return {"masters", "weights"}; }

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    return ctx->GetAttr("count", &count_);
  }

  void ReadCall(const Views&, const Views& results) {
    count_ = static_cast<int>(results.size()) / 2;
  }

  std::pair<int, int> Variables() const { return {0, 2 * count_}; }

 protected:
  int count() const { return count_; }

  // Checks masters, weights and, after them, `uniforms` tensors of random numbers.
  absl::Status CheckInputs(const Views& inputs, int uniforms) const {
    const auto given = static_cast<int>(inputs.size());
    if (given != 2 * count_ + uniforms) {
      return absl::InvalidArgumentError(
          absl::StrCat("there must be ", count_, " masters, as many weights, and ",
                       uniforms, " uniforms. Received: ", given, " inputs"));
    }
    for (int i = 0; i < count_; ++i) {
      const TensorView& master = inputs[i];
      TF_RETURN_IF_ERROR(CheckFp32("master", i, master, master));
      TF_RETURN_IF_ERROR(CheckWeight(i, inputs[count_ + i], master));
    }
    for (int i = 0; i < uniforms; ++i) {
      TF_RETURN_IF_ERROR(CheckFp32("uniform", i, inputs[2 * count_ + i], inputs[i]));
    }
    return absl::OkStatus();
  }

  std::vector<MasterPair> PairsOf(const Views& inputs) const {
    std::vector<MasterPair> pairs;
    pairs.reserve(count_);
    for (int i = 0; i < count_; ++i) {
      pairs.push_back(PairOf(inputs[i], &inputs[count_ + i]));
    }
    return pairs;
  }

 private:
  int count_ = 0;
};

class SyncMastersFromWeightsOp : public MastersOp {
 public:
  static constexpr char kName[] = "KerasMp>SyncMastersFromWeights";
  static constexpr char kCall[] = "keras_mp.sync_masters_from_weights";

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("is_stochastic", &is_stochastic_);
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, /*uniforms=*/0));
    return Views();
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views&) const {
    const std::vector<MasterPair> pairs = PairsOf(inputs);
    const auto rounding = is_stochastic_ ? Rounding::kStochastic : Rounding::kNearest;
    if constexpr (Device::kIsCpu) {
      return SyncMastersFromWeightsCpu(pairs.data(), count(), rounding,
                                       device.threads());
    } else {
      return SyncMastersFromWeightsCuda(pairs.data(), count(), rounding,
                                        device.stream());
    }
  }

 private:
  bool is_stochastic_ = false;
};

// More inputs: uniforms, where rounding is stochastic.
class CastMastersOp : public MastersOp {
 public:
  static constexpr char kName[] = "KerasMp>CastMasters";
  static constexpr char kCall[] = "keras_mp.cast_masters";

  template <class Visitor>
  void Visit(Visitor& visit) {
    visit.OfCall("is_stochastic", &is_stochastic_);
  }

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    TF_RETURN_IF_ERROR(MastersOp::ReadOp(ctx));
    int uniforms;
    TF_RETURN_IF_ERROR(ctx->GetAttr("uniform_count", &uniforms));
    is_stochastic_ = uniforms > 0;
    if (!is_stochastic_ || uniforms == count()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "there must be one of `uniforms` for each weight, or none. Received: ", count(),
        " weights, ", uniforms, " uniforms"));
  }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, is_stochastic_ ? count() : 0));
    return Views();
  }

  template <class Device>
  Status Run(const Device& device, const Views& inputs, const Views&) const {
    const std::vector<MasterPair> pairs = PairsOf(inputs);
    std::vector<const float*> uniforms;
    for (std::size_t i = 2 * count(); i < inputs.size(); ++i) {
      uniforms.push_back(inputs[i].As<float>());
    }
    const float* const* given = is_stochastic_ ? uniforms.data() : nullptr;
    if constexpr (Device::kIsCpu) {
      return CastMastersCpu(pairs.data(), count(), given, device.threads());
    } else {
      return CastMastersCuda(pairs.data(), count(), given, device.stream());
    }
  }

 private:
  bool is_stochastic_ = false;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_UPDATE_MASTER_OPS_H_
