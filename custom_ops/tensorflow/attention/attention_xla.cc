// The XlaOpKernels of KerasMp>Attention and its gradient for a CPU: each compiles to one
// XLA custom call of a handler in attention/attention_xla_ffi.cc, which runs the same
// kernel as the op outside of XLA. XLA itself would make a tensor of the scores.

#include <vector>

#include "attention/arguments.h"
#include "attention/xla_call_names.h"
#include "common/lowering.h"
#include "common/xla_dynamic_batch.h"

namespace keras_mp {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;

class AttentionXla : public tensorflow::XlaOpKernel {
 public:
  explicit AttentionXla(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetAttentionAttributes(ctx, &attributes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_mask", &masks_));
  }

 protected:
  // Makes the problem of the inputs that both ops have; the masks are those from
  // `first_mask` on, and the seeds follow.
  absl::Status Make(XlaOpKernelContext* ctx, int first_mask, Attention* a) const {
    std::vector<TensorShape> shapes(ctx->num_inputs());
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      TF_RETURN_IF_ERROR(GetShape(ctx, i, &shapes[i]));
    }
    const auto mask = shapes.begin() + first_mask, seed = mask + masks_;
    return MakeAttention(shapes[0], shapes[1], shapes[2], {mask, seed},
                         {seed, shapes.end()}, attributes_, ctx->input_type(0), a);
  }

  void Call(XlaOpKernelContext* ctx, const char* target,
            const std::vector<TensorShape>& results) const {
    const HandlerCall call = {"an attention",
                              target,
                              {Attribute("scale", attributes_.scale),
                               Attribute("is_causal", attributes_.is_causal),
                               Attribute("dropout", attributes_.dropout)},
                              results};
    OP_REQUIRES_OK(ctx, CallHandler(ctx, call));
  }

 private:
  AttentionAttributes attributes_;
  int masks_ = 0;
};

class AttentionXlaOp : public AttentionXla {
 public:
  using AttentionXla::AttentionXla;

  void Compile(XlaOpKernelContext* ctx) override {
    Attention a;
    OP_REQUIRES_OK(ctx, Make(ctx, /*first_mask=*/3, &a));
    std::vector<TensorShape> results(2);
    OP_REQUIRES_OK(ctx, ResultShapes(a, &results[0], &results[1]));
    Call(ctx, kAttentionCall, results);
  }
};

class AttentionGradientXlaOp : public AttentionXla {
 public:
  using AttentionXla::AttentionXla;

  void Compile(XlaOpKernelContext* ctx) override {
    Attention a;
    OP_REQUIRES_OK(ctx, Make(ctx, /*first_mask=*/6, &a));
    std::vector<TensorShape> shapes(6);
    for (int i = 0; i < 6; ++i) OP_REQUIRES_OK(ctx, GetShape(ctx, i, &shapes[i]));
    OP_REQUIRES_OK(ctx, CheckResults(a, shapes[3], shapes[4], shapes[5]));
    Call(ctx, kAttentionGradientCall, {shapes[0], shapes[1], shapes[2]});
  }
};

REGISTER_KERNEL_BUILDER(Name("KerasMp>Attention").Device("XLA_CPU_JIT"), AttentionXlaOp);
REGISTER_KERNEL_BUILDER(Name("KerasMp>AttentionGradient").Device("XLA_CPU_JIT"),
                        AttentionGradientXlaOp);

}  // namespace
}  // namespace keras_mp
