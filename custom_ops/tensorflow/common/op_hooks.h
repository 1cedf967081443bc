// What the class of an op tells the templates that register it: OpKernelOf, which runs it
// outside of XLA, XlaOpKernelOf, which compiles it to an XLA call of its kernel, and
// HandlerOf, which XLA calls. An op that XLA computes by operations of its own has a class
// without a call, for OpKernelOf and LoweringOf.
//
//   struct Negate : OpHooks {
//     static constexpr char kName[] = "KerasMp>Negate";   // of the op
//     static constexpr char kCall[] = "keras_mp.negate";  // of the XLA call
//     static constexpr int kMinInputs = 1, kMaxInputs = 1;
//
//     // The attributes of the call. The op has them under the same names, but for those of
//     // visit.OfCall; calls of earlier versions may lack those of visit.Optional.
//     template <class Visitor>
//     void Visit(Visitor& visit) { visit("scale", &scale); }
//
//     // Checks dtypes and shapes of the inputs, and returns those of the outputs.
//     absl::StatusOr<Views> Outputs(const Views& inputs) const;
//
//     // Computes, on a CpuDevice or GpuDevice.
//     Status Run(const CpuDevice& device, const Views& inputs, const Views& outputs) const;
//
//     float scale = 1;
//   };
//
//   KERAS_MP_REGISTER(Negate, CpuDevice);
//
// A call need not come from an op: a SavedModel may hold any module. So all checks are in
// the class, which both use.

#ifndef KERAS_MP_TENSORFLOW_COMMON_OP_HOOKS_H_
#define KERAS_MP_TENSORFLOW_COMMON_OP_HOOKS_H_

#include <limits>
#include <utility>
#include <vector>

#include "common/checks.h"
#include "common/tensor_view.h"

namespace keras_mp {

// What most ops leave as it is.
struct OpHooks {
  static constexpr int kMaxInputs = std::numeric_limits<int>::max();

  // Of so many inputs of the op, its first, only the shapes matter. The call has none of
  // them: its first results have these shapes.
  static constexpr int kShapeInputs = 0;

  // The input whose numbers decide about shapes, so that XLA has to know them, or -1.
  static constexpr int kConstantInput = -1;

  // The names of inputs that are in host memory, also on a GPU.
  static std::vector<const char*> HostInputs() { return {}; }

  // Reads, after Visit, what the op says otherwise than the call: `Context` is that of a
  // kernel's construction, or of a shape function.
  template <class Context>
  absl::Status ReadOp(Context*) {
    return absl::OkStatus();
  }

  // Finds out, after Visit, what the call says by its operands and results.
  void ReadCall(const Views& /*inputs*/, const Views& /*results*/) {}

  // Checks the attributes, once all are read, and works out what follows from them.
  absl::Status Complete() { return absl::OkStatus(); }

  // The inputs [first, second) are variables, which the kernel writes to. The call returns
  // them, in the same memory, before the outputs.
  std::pair<int, int> Variables() const { return {0, 0}; }

  // The input whose memory an output may take, or -1.
  int ForwardedInput(int /*output*/) const { return -1; }

  // Whether the first dimension is that of the batch, whose size XLA may find out when the
  // program runs.
  bool HasBatch(int /*input*/) const { return false; }
  bool ResultHasBatch(int /*output*/) const { return false; }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TENSORFLOW_COMMON_OP_HOOKS_H_
