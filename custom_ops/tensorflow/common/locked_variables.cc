#include "common/locked_variables.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/status.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace keras_mp {
namespace {

using tensorflow::Tensor;
using tensorflow::Var;

// Copies the value of a variable if other tensors share its buffer, as the assignments of
// TensorFlow do.
absl::Status MakeWritable(tensorflow::OpKernelContext* ctx, Var* variable,
                          const LockedVariables::Copy& copy_bytes) {
  if (!variable->is_initialized) {
    return absl::FailedPreconditionError(
        absl::StrCat("a variable must have a value. Received: ", variable->DebugString(),
                     ", not initialized"));
  }
  Tensor* tensor = variable->tensor();
  if (variable->copy_on_read_mode.load() || tensor->RefCountIsOne()) {
    return absl::OkStatus();
  }
  Tensor copy;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  TF_RETURN_IF_ERROR(
      ToAbsl(copy_bytes(copy.data(), tensor->data(), tensor->TotalBytes())));
  *tensor = copy;
  return absl::OkStatus();
}

}  // namespace

absl::Status DuplicateVariable() {
  return absl::InvalidArgumentError(
      "every master, slot and weight must be a variable of its own. Received: one twice");
}

absl::Status LockedVariables::Lock(tensorflow::OpKernelContext* ctx, int first, int end,
                                   const Copy& copy) {
  std::vector<decltype(std::declval<Var>().mu())> mutexes;
  first_ = first;
  variables_.reserve(end - first);
  for (int input = first; input < end; ++input) {
    if (ctx->input(input).NumElements() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a variable must have one handle. Received: input ", input,
                       " of shape ", ctx->input(input).shape().DebugString()));
    }
    tensorflow::core::RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        ctx, tensorflow::HandleFromInput(ctx, input), &variable));
    mutexes.push_back(variable->mu());
    variables_.push_back(std::move(variable));
  }
  // Every op locks in the order of addresses, so that no two wait for each other.
  std::sort(mutexes.begin(), mutexes.end(), std::less<>());
  mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
  if (mutexes.size() != variables_.size()) return DuplicateVariable();
  for (auto* mutex : mutexes) locks_.emplace_back(*mutex);
  for (const auto& variable : variables_) {
    TF_RETURN_IF_ERROR(MakeWritable(ctx, variable.get(), copy));
  }
  return absl::OkStatus();
}

}  // namespace keras_mp
