// The classes of KerasMp>Attention and its gradient: their attributes, checks and kernels,
// the functions of attention_cpu.h. XLA itself would make a tensor of the scores.

#ifndef KERAS_MP_TENSORFLOW_ATTENTION_ATTENTION_OPS_H_
#define KERAS_MP_TENSORFLOW_ATTENTION_ATTENTION_OPS_H_

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/cpu_device.h"
#include "common/op_hooks.h"
#include "keras_mp/attention_cpu.h"

namespace keras_mp {

// What both ops have in common. Inputs: query, key, value, more of the op, and at most one
// mask and one seed.
class AttentionOp : public OpHooks {
 public:
  template <class Visitor>
  void Visit(Visitor& visit) {
    visit("scale", &scale_);
    visit("is_causal", &is_causal_);
    visit.Optional("dropout", &dropout_);
  }

  template <class Context>
  absl::Status ReadOp(Context* ctx) {
    return ctx->GetAttr("num_mask", &masks_);
  }

  absl::Status Complete() {
    if (dropout_ >= 0 && dropout_ < 1) return absl::OkStatus();  // a NaN is not
    return absl::InvalidArgumentError(absl::StrCat(
        "dropout must be 0 or more, and below 1. Received: dropout=", dropout_));
  }

  bool HasBatch(int) const { return true; }
  bool ResultHasBatch(int) const { return true; }

 protected:
  using TensorShape = tensorflow::TensorShape;

  // Finds out how many of the inputs from `first_mask` on are masks; seeds follow.
  void CountMasks(const Views& inputs, int first_mask) {
    const auto end = static_cast<int>(inputs.size());
    masks_ = 0;
    while (first_mask + masks_ < end &&
           inputs[first_mask + masks_].dtype == tensorflow::DT_BOOL) {
      ++masks_;
    }
  }

  // The problem of inputs that fit.
  Attention AttentionOf(const Views& inputs, int first_mask) const {
    const auto [query, key, value] = FirstOf(inputs);
    Attention a;
    a.batch = query.shape.dim_size(0);
    a.queries = query.shape.dim_size(1);
    a.heads = query.shape.dim_size(2);
    a.key_size = query.shape.dim_size(3);
    a.keys = key.shape.dim_size(1);
    a.key_heads = key.shape.dim_size(2);
    a.value_size = value.shape.dim_size(3);
    a.type = query.type();
    a.scale = scale_;
    a.is_causal = is_causal_;
    a.dropout = dropout_;
    a.query = query.data;
    a.key = key.data;
    a.value = value.data;
    for (const TensorView& mask : MasksOf(inputs, first_mask)) SetMask(mask, &a);
    for (const TensorView& seed : SeedsOf(inputs, first_mask)) {
      const auto* numbers = seed.As<std::int32_t>();
      for (int i = 0; i < 2; ++i) a.seed[i] = static_cast<std::uint32_t>(numbers[i]);
    }
    return a;
  }

  absl::Status CheckInputs(const Views& inputs, int first_mask) const {
    const auto [query, key, value] = FirstOf(inputs);
    const auto type = query.dtype;
    const TensorShape &q = query.shape, &k = key.shape, &v = value.shape;
    const bool fits =
        (Has16Bits(type) || type == tensorflow::DT_FLOAT) && key.dtype == type &&
        value.dtype == type && q.dims() == 4 && k.dims() == 4 && v.dims() == 4 &&
        k.dim_size(0) == q.dim_size(0) && v.dim_size(0) == q.dim_size(0) &&
        v.dim_size(1) == k.dim_size(1) && v.dim_size(2) == k.dim_size(2) &&
        k.dim_size(3) == q.dim_size(3) &&
        (k.dim_size(2) == 0 ? q.dim_size(2) == 0 : q.dim_size(2) % k.dim_size(2) == 0);
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "query must be [batch, queries, heads, size], key [batch, keys, key_heads, "
          "size] and value [batch, keys, key_heads, any size], all half, bfloat16 or "
          "float, where heads is a multiple of key_heads. Received: query ",
          query.DebugString(), ", key ", key.DebugString(), ", value ",
          value.DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckMasks(q, k, MasksOf(inputs, first_mask)));
    return CheckSeeds(SeedsOf(inputs, first_mask));
  }

  // The results. The number of elements may not fit into 64 bits where another size is 0.
  static absl::StatusOr<Views> ResultsOf(const Views& inputs) {
    const auto [query, key, value] = FirstOf(inputs);
    const TensorShape& q = query.shape;
    Views results(2);
    results[0].dtype = query.dtype;
    results[1].dtype = tensorflow::DT_FLOAT;
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
        {q.dim_size(0), q.dim_size(1), q.dim_size(2), value.shape.dim_size(3)},
        &results[0].shape));
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
        {q.dim_size(0), q.dim_size(2), q.dim_size(1)}, &results[1].shape));
    return results;
  }

 private:
  using List = absl::Span<const TensorView>;

  struct First {
    const TensorView &query, &key, &value;
  };

  static First FirstOf(const Views& inputs) { return {inputs[0], inputs[1], inputs[2]}; }

  List MasksOf(const Views& inputs, int first_mask) const {
    return List(inputs).subspan(first_mask, masks_);
  }
  List SeedsOf(const Views& inputs, int first_mask) const {
    return List(inputs).subspan(first_mask + masks_);
  }

  static void SetMask(const TensorView& mask, Attention* a) {
    a->mask = mask.As<std::uint8_t>();
    std::int64_t stride = 1;
    if (mask.shape.num_elements() == 0) return;
    for (int d = 3; d >= 0; --d) {
      a->mask_strides[d] = mask.shape.dim_size(d) == 1 ? 0 : stride;
      stride *= mask.shape.dim_size(d);
    }
  }

  // The sizes of a mask are those of [batch, heads, queries, keys], or 1.
  static absl::Status CheckMasks(const TensorShape& query, const TensorShape& key,
                                 List masks) {
    if (masks.empty()) return absl::OkStatus();
    const std::int64_t sizes[4] = {query.dim_size(0), query.dim_size(2),
                                   query.dim_size(1), key.dim_size(1)};
    const TensorView& mask = masks[0];
    bool fits = masks.size() == 1 && mask.dtype == tensorflow::DT_BOOL &&
                mask.shape.dims() == 4;
    for (int d = 0; fits && d < 4; ++d) {
      fits = mask.shape.dim_size(d) == 1 || mask.shape.dim_size(d) == sizes[d];
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "there is at most one mask, whose sizes are those of [batch, heads, queries, "
        "keys] = [",
        absl::StrJoin(sizes, ", "), "] or 1. Received: ", masks.size(),
        ", the first ", mask.DebugString()));
  }

  // There is one seed with a dropout, and else none or one.
  absl::Status CheckSeeds(List seeds) const {
    const bool fits = seeds.size() <= 1 && (dropout_ == 0 || seeds.size() == 1);
    if (fits && (seeds.empty() || (seeds[0].dtype == tensorflow::DT_INT32 &&
                                   seeds[0].shape == TensorShape({2})))) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "a dropout has one seed, of two numbers of int32. Received: dropout=", dropout_,
        " and ", seeds.size(), " seeds",
        seeds.empty() ? "" : absl::StrCat(", the first ", seeds[0].DebugString())));
  }

  float scale_ = 1;
  bool is_causal_ = false;
  float dropout_ = 0;
  int masks_ = 0;
};

// Inputs: those of AttentionOp. Outputs: result, log_sum_exp.
class AttentionForwardOp : public AttentionOp {
 public:
  static constexpr char kName[] = "KerasMp>Attention";
  static constexpr char kCall[] = "keras_mp.attention";
  static constexpr int kMinInputs = 3;

  void ReadCall(const Views& inputs, const Views&) { CountMasks(inputs, kFirstMask); }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, kFirstMask));
    return ResultsOf(inputs);
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    const AttentionResult result = {outputs[0].data, outputs[1].As<float>()};
    return AttentionCpu(AttentionOf(inputs, kFirstMask), result, device.threads());
  }

 private:
  static constexpr int kFirstMask = 3;
};

// Inputs: query, key, value, both results, the gradient of the first, mask, seed. Outputs:
// the gradients of query, key and value.
class AttentionGradientOp : public AttentionOp {
 public:
  static constexpr char kName[] = "KerasMp>AttentionGradient";
  static constexpr char kCall[] = "keras_mp.attention_gradient";
  static constexpr int kMinInputs = 6;

  void ReadCall(const Views& inputs, const Views&) { CountMasks(inputs, kFirstMask); }

  absl::StatusOr<Views> Outputs(const Views& inputs) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs, kFirstMask));
    const auto results = ResultsOf(inputs);
    TF_RETURN_IF_ERROR(results.status());
    const TensorView &result = (*results)[0], &log_sum_exp = (*results)[1];
    TF_RETURN_IF_ERROR(CheckTensor("result", inputs[3], result.dtype, result.shape));
    TF_RETURN_IF_ERROR(
        CheckTensor("log_sum_exp", inputs[4], log_sum_exp.dtype, log_sum_exp.shape));
    TF_RETURN_IF_ERROR(CheckTensor("grad", inputs[5], result.dtype, result.shape));
    Views grads;
    for (int i = 0; i < 3; ++i) grads.push_back({inputs[i].dtype, inputs[i].shape});
    return grads;
  }

  Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const {
    const AttentionGradient gradient = {
        inputs[3].data,  inputs[4].As<float>(), inputs[5].data,
        outputs[0].data, outputs[1].data,       outputs[2].data};
    return AttentionGradientCpu(AttentionOf(inputs, kFirstMask), gradient,
                                device.threads());
  }

 private:
  static constexpr int kFirstMask = 6;
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_ATTENTION_ATTENTION_OPS_H_
