// The XLA FFI handler of an op's class: a function that XLA calls with the buffers of an
// XLA call. It makes the checks of the op, which the call need not come from.

#ifndef KERAS_MP_TENSORFLOW_COMMON_HANDLER_OF_H_
#define KERAS_MP_TENSORFLOW_COMMON_HANDLER_OF_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/locked_variables.h"
#include "common/op_hooks.h"
#include "common/tensor_view.h"
#include "common/visit_attributes.h"
#include "xla/ffi/api/ffi.h"

// Declared here, as the header that does needs one of MLIR, which TensorFlow does not
// ship.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_mp {

// DT_INVALID for those that no op has.
inline tensorflow::DataType DTypeOf(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::F16:
      return tensorflow::DT_HALF;
    case xla::ffi::BF16:
      return tensorflow::DT_BFLOAT16;
    case xla::ffi::F32:
      return tensorflow::DT_FLOAT;
    case xla::ffi::PRED:
      return tensorflow::DT_BOOL;
    case xla::ffi::S8:
      return tensorflow::DT_INT8;
    case xla::ffi::S16:
      return tensorflow::DT_INT16;
    case xla::ffi::S32:
      return tensorflow::DT_INT32;
    case xla::ffi::U8:
      return tensorflow::DT_UINT8;
    default:
      return tensorflow::DT_INVALID;
  }
}

inline absl::Status AddView(const xla::ffi::AnyBuffer& buffer, Views* views) {
  TensorView view;
  view.dtype = DTypeOf(buffer.element_type());
  view.data = buffer.untyped_data();
  const auto sizes = buffer.dimensions();
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(
      absl::MakeConstSpan(sizes.begin(), sizes.size()), &view.shape));
  views->push_back(std::move(view));
  return absl::OkStatus();
}

inline absl::Status AddOperands(const xla::ffi::RemainingArgs& operands, Views* views) {
  views->reserve(views->size() + operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    TF_RETURN_IF_ERROR(AddView(*operands.get<xla::ffi::AnyBuffer>(i), views));
  }
  return absl::OkStatus();
}

inline absl::Status AddResults(const xla::ffi::RemainingRets& results, Views* views) {
  views->reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    TF_RETURN_IF_ERROR(AddView(**results.get<xla::ffi::AnyBuffer>(i), views));
  }
  return absl::OkStatus();
}

inline absl::Status CheckCount(const char* what, std::size_t count, std::size_t minimum,
                               std::size_t maximum) {
  if (minimum <= count && count <= maximum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there must be ", minimum, " to ", maximum, " ", what,
                   " of the call. Received: ", count));
}

// Checks that a call returns the variables, which are distinct, in their memory before the
// outputs, and sets the data of these.
inline absl::Status BindResults(absl::Span<const TensorView> variables,
                                const Views& results, Views* outputs) {
  const std::size_t count = variables.size() + outputs->size();
  TF_RETURN_IF_ERROR(CheckCount("results", results.size(), count, count));
  for (std::size_t i = 0; i < variables.size(); ++i) {
    TF_RETURN_IF_ERROR(CheckTensor("a variable", results[i], variables[i].dtype,
                                   variables[i].shape));
  }
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    TensorView& output = (*outputs)[i];
    const TensorView& result = results[variables.size() + i];
    TF_RETURN_IF_ERROR(CheckTensor("a result", result, output.dtype, output.shape));
    output.data = result.data;
  }
  std::vector<const void*> written;
  written.reserve(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (variables[i].shape.num_elements() == 0) continue;
    if (results[i].data != variables[i].data) {
      return absl::InternalError("XLA moved a variable that is updated in place");
    }
    written.push_back(variables[i].data);
  }
  std::sort(written.begin(), written.end());
  const bool is_distinct =
      std::adjacent_find(written.begin(), written.end()) == written.end();
  return is_distinct ? absl::OkStatus() : DuplicateVariable();
}

template <class Op, class Device>
absl::Status RunCall(const Device& device, const xla::ffi::RemainingArgs& operands,
                     const xla::ffi::RemainingRets& given_results,
                     const xla::ffi::Dictionary& attributes) {
  Op op;
  FromCall visit(attributes);
  op.Visit(visit);
  TF_RETURN_IF_ERROR(visit.status());
  Views inputs, results;
  TF_RETURN_IF_ERROR(AddResults(given_results, &results));
  TF_RETURN_IF_ERROR(
      CheckCount("results", results.size(), Op::kShapeInputs, OpHooks::kMaxInputs));
  inputs.assign(results.begin(), results.begin() + Op::kShapeInputs);
  TF_RETURN_IF_ERROR(AddOperands(operands, &inputs));
  TF_RETURN_IF_ERROR(
      CheckCount("inputs", inputs.size(), Op::kMinInputs, Op::kMaxInputs));
  op.ReadCall(inputs, results);
  TF_RETURN_IF_ERROR(op.Complete());
  auto outputs = op.Outputs(inputs);
  TF_RETURN_IF_ERROR(outputs.status());
  const auto [first, end] = op.Variables();
  const auto variables = absl::MakeConstSpan(inputs).subspan(first, end - first);
  TF_RETURN_IF_ERROR(BindResults(variables, results, &*outputs));
  return ToAbsl(op.Run(device, inputs, *outputs));
}

template <class Op, class Device>
xla::ffi::Error Handle(typename Device::CallContext context,
                       xla::ffi::RemainingArgs operands, xla::ffi::RemainingRets results,
                       xla::ffi::Dictionary attributes) {
  const absl::Status status =
      RunCall<Op>(Device(context), operands, results, attributes);
  if (status.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error(static_cast<XLA_FFI_Error_Code>(status.raw_code()),
                         absl::StrCat(Op::kCall, ": ", status.message()));
}

// What XLA_FFI_DEFINE_HANDLER defines.
template <class Op, class Device>
XLA_FFI_Error* HandlerOf(XLA_FFI_CallFrame* frame) {
  static auto* const handler = xla::ffi::Ffi::Bind()
                                   .Ctx<typename Device::CallContext>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attrs()
                                   .To(Handle<Op, Device>)
                                   .release();
  return handler->Call(frame);
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_HANDLER_OF_H_
