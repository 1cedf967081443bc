// The ops KerasMp>Attention and its gradient: inputs, attributes and shape functions; and
// their CPU kernels, the functions of attention_cpu.h on TensorFlow's threads.

#include "keras_mp/attention_cpu.h"

#include <cstdint>
#include <vector>

#include "attention/arguments.h"
#include "common/cpu_device.h"
#include "common/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shapes of query, key and value, as far as they are known.
absl::Status MergeShapes(InferenceContext* c, ShapeHandle* query, ShapeHandle* key,
                         ShapeHandle* value) {
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, query));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 4, key));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 4, value));
  DimensionHandle merged;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*query, 0), c->Dim(*key, 0), &merged));
  TF_RETURN_IF_ERROR(c->Merge(merged, c->Dim(*value, 0), &merged));
  TF_RETURN_IF_ERROR(c->ReplaceDim(*query, 0, merged, query));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*query, 3), c->Dim(*key, 3), &merged));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*key, 1), c->Dim(*value, 1), &merged));
  return c->Merge(c->Dim(*key, 2), c->Dim(*value, 2), &merged);
}

// Masks are the inputs from the `first` on, and after them seeds.
absl::Status CheckMaskAndSeed(InferenceContext* c, int first) {
  int masks;
  TF_RETURN_IF_ERROR(c->GetAttr("num_mask", &masks));
  for (int i = first; i < c->num_inputs(); ++i) {
    ShapeHandle given;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), i < first + masks ? 4 : 1, &given));
  }
  return absl::OkStatus();
}

// What was added after the first version has defaults, so that graphs which were saved by
// it are read: the seed and the dropout.
REGISTER_OP("KerasMp>Attention")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("mask: num_mask * bool")
    .Input("seed: num_seed * int32")
    .Output("result: T")
    .Output("log_sum_exp: float")
    .Attr("T: {half, bfloat16, float}")
    .Attr("num_mask: int >= 0 = 0")
    .Attr("scale: float")
    .Attr("is_causal: bool")
    .Attr("num_seed: int >= 0 = 0")
    .Attr("dropout: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle query, key, value;
      TF_RETURN_IF_ERROR(MergeShapes(c, &query, &key, &value));
      TF_RETURN_IF_ERROR(CheckMaskAndSeed(c, /*first=*/3));
      c->set_output(0, c->MakeShape({c->Dim(query, 0), c->Dim(query, 1),
                                     c->Dim(query, 2), c->Dim(value, 3)}));
      c->set_output(
          1, c->MakeShape({c->Dim(query, 0), c->Dim(query, 2), c->Dim(query, 1)}));
      return absl::OkStatus();
    })
    .Doc("round(softmax(scale * query key^T) value) for each head, in FP32, without a "
         "tensor of the scores; and the logarithm of each sum of the softmax, for the "
         "gradient. A mask is false where a key is hidden from a query. The weights are "
         "dropped by a hash of the seed and their position.");

REGISTER_OP("KerasMp>AttentionGradient")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("result: T")
    .Input("log_sum_exp: float")
    .Input("grad: T")
    .Input("mask: num_mask * bool")
    .Input("seed: num_seed * int32")
    .Output("grad_query: T")
    .Output("grad_key: T")
    .Output("grad_value: T")
    .Attr("T: {half, bfloat16, float}")
    .Attr("num_mask: int >= 0 = 0")
    .Attr("scale: float")
    .Attr("is_causal: bool")
    .Attr("num_seed: int >= 0 = 0")
    .Attr("dropout: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle query, key, value;
      TF_RETURN_IF_ERROR(MergeShapes(c, &query, &key, &value));
      for (int i = 3; i < 6; ++i) {
        ShapeHandle given;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), i == 4 ? 3 : 4, &given));
      }
      TF_RETURN_IF_ERROR(CheckMaskAndSeed(c, /*first=*/6));
      c->set_output(0, query);
      c->set_output(1, key);
      c->set_output(2, value);
      return absl::OkStatus();
    })
    .Doc("The gradient of KerasMp>Attention for its tensors, from its results and the "
         "gradient of the first. It computes the scores again.");

// The shapes of a list of inputs, and the data of the first; null for none.
absl::Status ReadList(OpKernelContext* ctx, const char* name,
                      std::vector<TensorShape>* shapes, const void** data) {
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list(name, &list));
  for (const Tensor& tensor : list) shapes->push_back(tensor.shape());
  *data = list.size() == 0 ? nullptr : list[0].data();
  return absl::OkStatus();
}

class AttentionOp : public tensorflow::OpKernel {
 public:
  explicit AttentionOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetAttentionAttributes(ctx, &attributes_));
  }

 protected:
  // Makes the problem of the inputs that both ops have.
  absl::Status Make(OpKernelContext* ctx, Attention* a) const {
    std::vector<TensorShape> masks, seeds;
    const void *mask, *seed;
    TF_RETURN_IF_ERROR(ReadList(ctx, "mask", &masks, &mask));
    TF_RETURN_IF_ERROR(ReadList(ctx, "seed", &seeds, &seed));
    const Tensor &query = ctx->input(0), &key = ctx->input(1), &value = ctx->input(2);
    TF_RETURN_IF_ERROR(MakeAttention(query.shape(), key.shape(), value.shape(), masks,
                                     seeds, attributes_, query.dtype(), a));
    a->query = query.data();
    a->key = key.data();
    a->value = value.data();
    a->mask = static_cast<const std::uint8_t*>(mask);
    if (seed != nullptr) SetSeed(seed, a);
    return absl::OkStatus();
  }

 private:
  AttentionAttributes attributes_;
};

class AttentionCpuOp : public AttentionOp {
 public:
  using AttentionOp::AttentionOp;

  void Compute(OpKernelContext* ctx) override {
    Attention a;
    OP_REQUIRES_OK(ctx, Make(ctx, &a));
    TensorShape of_result, of_sums;
    OP_REQUIRES_OK(ctx, ResultShapes(a, &of_result, &of_sums));
    Tensor *result, *log_sum_exp;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, of_result, &result));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, of_sums, &log_sum_exp));
    const AttentionResult results = {result->data(), log_sum_exp->flat<float>().data()};
    OP_REQUIRES_OK(ctx, ToAbsl(AttentionCpu(a, results, CpuThreads(ctx))));
  }
};

class AttentionGradientCpuOp : public AttentionOp {
 public:
  using AttentionOp::AttentionOp;

  void Compute(OpKernelContext* ctx) override {
    Attention a;
    OP_REQUIRES_OK(ctx, Make(ctx, &a));
    const Tensor &result = ctx->input(3), &log_sum_exp = ctx->input(4);
    const Tensor& grad = ctx->input(5);
    OP_REQUIRES_OK(
        ctx, CheckResults(a, result.shape(), log_sum_exp.shape(), grad.shape()));
    Tensor* grads[3];
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, ctx->input(i).shape(), &grads[i]));
    }
    const AttentionGradient gradient = {
        result.data(),    log_sum_exp.flat<float>().data(),
        grad.data(),      grads[0]->data(),
        grads[1]->data(), grads[2]->data()};
    OP_REQUIRES_OK(ctx, ToAbsl(AttentionGradientCpu(a, gradient, CpuThreads(ctx))));
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Attention").Device(tensorflow::DEVICE_CPU),
                        AttentionCpuOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>AttentionGradient").Device(tensorflow::DEVICE_CPU),
                        AttentionGradientCpuOp);

}  // namespace
}  // namespace keras_mp
