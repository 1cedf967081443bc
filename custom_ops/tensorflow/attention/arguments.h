// The tensors and attributes of the ops of attention, checked.

#ifndef KERAS_MP_TENSORFLOW_ATTENTION_ARGUMENTS_H_
#define KERAS_MP_TENSORFLOW_ATTENTION_ARGUMENTS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "keras_mp/attention.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace keras_mp {

struct AttentionAttributes {
  float scale = 1;
  bool is_causal = false;
  float dropout = 0;
};

template <class Context>
absl::Status GetAttentionAttributes(Context* ctx, AttentionAttributes* attributes) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("scale", &attributes->scale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("is_causal", &attributes->is_causal));
  return ctx->GetAttr("dropout", &attributes->dropout);
}

// A status, as the number of elements may not fit into 64 bits where another size is 0.
inline absl::Status ResultShapes(const Attention& a, tensorflow::TensorShape* result,
                                 tensorflow::TensorShape* log_sum_exp) {
  using tensorflow::TensorShape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
      {a.batch, a.queries, a.heads, a.value_size}, result));
  return TensorShape::BuildTensorShape({a.batch, a.heads, a.queries}, log_sum_exp);
}

// `masks`: those of the op, of which there is at most one. Its sizes are those of [batch,
// heads, queries, keys], or 1.
inline absl::Status SetMaskStrides(const std::vector<tensorflow::TensorShape>& masks,
                                   Attention* a) {
  if (masks.empty()) return absl::OkStatus();
  const std::int64_t sizes[4] = {a->batch, a->heads, a->queries, a->keys};
  const tensorflow::TensorShape& mask = masks[0];
  bool fits = masks.size() == 1 && mask.dims() == 4;
  for (int d = 0; fits && d < 4; ++d) {
    fits = mask.dim_size(d) == 1 || mask.dim_size(d) == sizes[d];
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is at most one mask, whose sizes are those of [batch, heads, queries, "
        "keys] = [", absl::StrJoin(sizes, ", "), "] or 1. Received: ", masks.size(),
        ", the first of shape ", mask.DebugString()));
  }
  if (mask.num_elements() == 0) return absl::OkStatus();
  std::int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    a->mask_strides[d] = mask.dim_size(d) == 1 ? 0 : stride;
    stride *= mask.dim_size(d);
  }
  return absl::OkStatus();
}

// `seeds`: those of the op, of which there is one with a dropout, and else none or one.
inline absl::Status CheckDropout(float dropout,
                                 const std::vector<tensorflow::TensorShape>& seeds) {
  if (!(dropout >= 0 && dropout < 1)) {  // a NaN is not
    return absl::InvalidArgumentError(absl::StrCat(
        "dropout must be 0 or more, and below 1. Received: dropout=", dropout));
  }
  const bool fits = seeds.size() <= 1 && (dropout == 0 || seeds.size() == 1);
  if (fits && (seeds.empty() || seeds[0] == tensorflow::TensorShape({2}))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a dropout has one seed, of two numbers. Received: dropout=", dropout, " and ",
      seeds.size(), " seeds",
      seeds.empty() ? "" : absl::StrCat(", the first of shape ", seeds[0].DebugString())));
}

inline absl::Status MakeAttention(const tensorflow::TensorShape& query,
                                  const tensorflow::TensorShape& key,
                                  const tensorflow::TensorShape& value,
                                  const std::vector<tensorflow::TensorShape>& masks,
                                  const std::vector<tensorflow::TensorShape>& seeds,
                                  const AttentionAttributes& attributes,
                                  tensorflow::DataType type, Attention* a) {
  const bool fits = query.dims() == 4 && key.dims() == 4 && value.dims() == 4 &&
                    key.dim_size(0) == query.dim_size(0) &&
                    value.dim_size(0) == query.dim_size(0) &&
                    value.dim_size(1) == key.dim_size(1) &&
                    value.dim_size(2) == key.dim_size(2) &&
                    key.dim_size(3) == query.dim_size(3) &&
                    (key.dim_size(2) == 0 ? query.dim_size(2) == 0
                                          : query.dim_size(2) % key.dim_size(2) == 0);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "query must be [batch, queries, heads, size], key [batch, keys, key_heads, size] "
        "and value [batch, keys, key_heads, any size], where heads is a multiple of "
        "key_heads. Received: query.shape=",
        query.DebugString(), ", key.shape=", key.DebugString(),
        ", value.shape=", value.DebugString()));
  }
  a->batch = query.dim_size(0);
  a->queries = query.dim_size(1);
  a->heads = query.dim_size(2);
  a->key_size = query.dim_size(3);
  a->keys = key.dim_size(1);
  a->key_heads = key.dim_size(2);
  a->value_size = value.dim_size(3);
  a->type = TypeOf(type);
  a->scale = attributes.scale;
  a->is_causal = attributes.is_causal;
  a->dropout = attributes.dropout;
  TF_RETURN_IF_ERROR(CheckDropout(a->dropout, seeds));
  return SetMaskStrides(masks, a);
}

inline void SetSeed(const void* seed, Attention* a) {
  for (int i = 0; i < 2; ++i) {
    a->seed[i] = static_cast<std::uint32_t>(static_cast<const std::int32_t*>(seed)[i]);
  }
}

// Checks the shapes of the results that a gradient is given.
inline absl::Status CheckResults(const Attention& a,
                                 const tensorflow::TensorShape& result,
                                 const tensorflow::TensorShape& log_sum_exp,
                                 const tensorflow::TensorShape& grad) {
  tensorflow::TensorShape of_result, of_sums;
  TF_RETURN_IF_ERROR(ResultShapes(a, &of_result, &of_sums));
  if (result == of_result && grad == of_result && log_sum_exp == of_sums) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "result and grad must have the shape ", of_result.DebugString(),
      ", and log_sum_exp ", of_sums.DebugString(), ". Received: ", result.DebugString(),
      ", ", grad.DebugString(), ", ", log_sum_exp.DebugString()));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_ATTENTION_ARGUMENTS_H_
