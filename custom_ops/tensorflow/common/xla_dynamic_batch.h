// An op as one XLA custom call, whose batch may have a size that is known at run time
// alone. A handler takes static shapes.

#ifndef KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_
#define KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/xla_custom_call.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace keras_mp {

// Gives an operand its largest size: where the first dimension has a dynamic one, which
// `size` becomes, with zeros at the end. No other dimension may have one, and that one
// neither unless `has_batch`. `what` names the op in the error.
inline absl::Status MakeStatic(const char* what, bool has_batch, xla::XlaOp* operand,
                               xla::XlaOp* size) {
  auto* builder = operand->builder();
  const auto shape = builder->GetShape(*operand);
  TF_RETURN_IF_ERROR(shape.status());
  const int first_static = has_batch ? 1 : 0;
  for (int d = first_static; d < static_cast<int>(shape->dimensions().size()); ++d) {
    if (shape->is_static_dimension(d)) continue;
    return absl::UnimplementedError(
        absl::StrCat("of ", what, " XLA may find the size of the batch at run time, but "
                     "no other size"));
  }
  if (!shape->is_dynamic()) return absl::OkStatus();
  *size = xla::GetDimensionSize(*operand, 0);
  const xla::XlaOp all = xla::RemoveDynamicDimension(*operand, 0);
  xla::Shape indices = xla::ShapeUtil::ChangeElementType(*shape, xla::S32);
  indices.clear_dynamic_dimensions();
  const xla::XlaOp is_given = xla::Lt(xla::Iota(builder, indices, 0), *size);
  *operand = xla::Select(is_given, all, xla::ZerosLike(all));
  return absl::OkStatus();
}

// A result of that size, where it is one.
inline xla::XlaOp MakeDynamic(xla::XlaOp result, xla::XlaOp size) {
  return size.valid() ? xla::SetDimensionSize(result, size, 0) : result;
}

struct HandlerCall {
  const char* what;    // the op, in an error
  const char* target;  // the name of the handler
  std::vector<std::string> attributes;
  std::vector<tensorflow::TensorShape> results;
  int first_input = 0;
  // Those whose first dimension is not that of the batch.
  std::set<int> fixed_inputs = {}, fixed_results = {};
};

// Calls a handler with the inputs of an op, and sets all its outputs.
inline absl::Status CallHandler(tensorflow::XlaOpKernelContext* ctx,
                                const HandlerCall& given) {
  CustomCall call(ctx->builder());
  xla::XlaOp dynamic_batch;
  for (int i = given.first_input; i < ctx->num_inputs(); ++i) {
    xla::XlaOp operand = ctx->Input(i);
    TF_RETURN_IF_ERROR(MakeStatic(given.what, given.fixed_inputs.count(i) == 0, &operand,
                                  &dynamic_batch));
    call.AddOperand(operand);
  }
  const int count = static_cast<int>(given.results.size());
  for (int i = 0; i < count; ++i) {
    xla::PrimitiveType type;
    TF_RETURN_IF_ERROR(
        tensorflow::DataTypeToPrimitiveType(ctx->expected_output_dtype(i), &type));
    const auto sizes = given.results[i].dim_sizes();
    call.AddResult(type, {sizes.begin(), sizes.end()});
  }
  const auto results = call.Make(given.target, absl::StrJoin(given.attributes, ", "));
  TF_RETURN_IF_ERROR(results.status());
  for (int i = 0; i < count; ++i) {
    const xla::XlaOp result = (*results)[i];
    const bool is_fixed = given.fixed_results.count(i) > 0;
    ctx->SetOutput(i, is_fixed ? result : MakeDynamic(result, dynamic_batch));
  }
  return absl::OkStatus();
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_XLA_DYNAMIC_BATCH_H_
