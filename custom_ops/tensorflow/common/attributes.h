// Reads and checks the attributes that an op's CPU kernel and its XLA lowering share.

#ifndef KERAS_MP_TENSORFLOW_COMMON_ATTRIBUTES_H_
#define KERAS_MP_TENSORFLOW_COMMON_ATTRIBUTES_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_mp {

inline absl::Status GetEpsilon(tensorflow::OpKernelConstruction* ctx, float* epsilon) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", epsilon));
  if (*epsilon >= 0) return absl::OkStatus();  // a NaN is not
  return absl::InvalidArgumentError(
      absl::StrCat("epsilon must be 0 or more. Received: epsilon=", *epsilon));
}

// The lengths of the lists of gammas and betas, each 0 or 1.
inline absl::Status GetParameters(tensorflow::OpKernelConstruction* ctx, int* gammas,
                                  int* betas) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_gamma", gammas));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_beta", betas));
  if (*gammas <= 1 && *betas <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "there is at most one gamma and one beta. Received: ", *gammas, " and ", *betas));
}

struct Windows {
  std::vector<std::int64_t> window, strides;
  bool is_same = false;
};

// Window and strides are three integers from 1 to 2^31 - 1, so that no sum of them
// overflows. `Context` is the context of a kernel's construction or of a shape function.
template <class Context>
absl::Status GetWindows(Context* ctx, Windows* windows) {
  std::string padding;
  TF_RETURN_IF_ERROR(ctx->GetAttr("window", &windows->window));
  TF_RETURN_IF_ERROR(ctx->GetAttr("strides", &windows->strides));
  TF_RETURN_IF_ERROR(ctx->GetAttr("padding", &padding));
  windows->is_same = padding == "same";
  const auto fits = [](const std::vector<std::int64_t>& numbers) {
    return numbers.size() == 3 &&
           std::all_of(numbers.begin(), numbers.end(), [](std::int64_t number) {
             return number >= 1 && number <= std::numeric_limits<std::int32_t>::max();
           });
  };
  if (fits(windows->window) && fits(windows->strides)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "window and strides must be three numbers of 1 or more. Received: window=[",
      absl::StrJoin(windows->window, ", "), "], strides=[",
      absl::StrJoin(windows->strides, ", "), "]"));
}

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_ATTRIBUTES_H_
