// The step of one variable, block by block, for rules that need nothing of other blocks;
// and what the others make theirs of.

#ifndef KERAS_MP_SRC_CPU_UPDATE_UPDATE_OF_BLOCKS_H_
#define KERAS_MP_SRC_CPU_UPDATE_UPDATE_OF_BLOCKS_H_

#include <cstdint>

#include "cpu/update/chunks.h"
#include "cpu/update/update_kernel.h"
#include "keras_mp/update.h"

namespace keras_mp {

// The step of one variable, block by block. What is compressed is expanded into buffers;
// what is not is updated where it is.
class UpdateOfBlocks {
 public:
  UpdateOfBlocks(const Update& update, const Parameter& parameter,
                 const UpdateKernel& kernel)
      : update_(update),
        parameter_(parameter),
        pair_(parameter.pair),
        u_(*update.hyperparameters),
        kernel_(kernel) {}

  void operator()(std::int64_t at, std::int64_t n) const {
    float g[kUpdateBlock], master_buffer[kUpdateBlock];
    float slot_buffers[kMostSlots][kUpdateBlock];
    ReadGradient(at, n, g);
    float* const master = ReadMaster(at, n, master_buffer);
    float* slots[kMostSlots];
    for (int k = 0; k < kMostSlots; ++k) slots[k] = ReadSlot(k, at, n, slot_buffers[k]);
    kernel_.step(update_.rule, u_, parameter_.apply_weight_decay, g,
                 Offset(parameter_.powers, at), master, slots, n);
    for (int k = 0; k < kMostSlots; ++k) WriteSlot(k, at, n, slots[k]);
    WriteMaster(at, n, master);
  }

  void ReadGradient(std::int64_t at, std::int64_t n, float* to) const {
    const Gradient& gradient = parameter_.gradient;
    kernel_.unscale(At(gradient, at), gradient.type, n, u_.scale, to);
  }

  float* ReadMaster(std::int64_t at, std::int64_t n, float* buffer) const {
    float* const master = Offset(pair_.master, at);
    const std::uint16_t* const weight = Offset(pair_.weight, at);
    if (pair_.remainder) {
      kernel_.join(weight, pair_.remainder + at, pair_.type, n, buffer);
    } else if (pair_.short_remainder) {
      kernel_.join_short(weight, pair_.short_remainder + at, pair_.type, n, buffer);
    } else if (!master) {
      kernel_.unscale(weight, pair_.type, n, 1, buffer);
    } else if (weight) {
      kernel_.sync_masters(master, weight, pair_.type, n, update_.rounding);
    }
    return master ? master : buffer;
  }

  void WriteMaster(std::int64_t at, std::int64_t n, const float* master) const {
    std::uint16_t* const weight = Offset(pair_.weight, at);
    if (pair_.remainder) {
      kernel_.split(master, pair_.type, n, weight, pair_.remainder + at);
    } else if (pair_.short_remainder) {
      kernel_.split_short(master, pair_.type, n, Low(at), u_, weight,
                          pair_.short_remainder + at);
    } else if (!pair_.master) {
      kernel_.cast_with_noise(master, weight, pair_.type, n, Low(at), u_);
    } else if (weight) {
      kernel_.cast(master, weight, pair_.type, n, Offset(parameter_.uniforms, at));
    }
  }

 private:
  float* ReadSlot(int k, std::int64_t at, std::int64_t n, float* buffer) const {
    const Slot& slot = parameter_.slots[k];
    if (!slot.exponents) return Offset(slot.values, at);
    kernel_.decode(SlotCodeOf(update_.rule, k), BitsOf(slot), CodesOf(slot, at),
                   slot.exponents + at / kSlotGroup, n, buffer);
    return buffer;
  }

  void WriteSlot(int k, std::int64_t at, std::int64_t n, const float* values) const {
    const Slot& slot = parameter_.slots[k];
    if (!slot.exponents) return;
    kernel_.encode(SlotCodeOf(update_.rule, k), BitsOf(slot), values, n, Low(at), u_, k,
                   CodesOf(slot, at), slot.exponents + at / kSlotGroup);
  }

  static int BitsOf(const Slot& slot) { return slot.codes ? 8 : 4; }

  // `at`: a multiple of kSlotGroup.
  static std::uint8_t* CodesOf(const Slot& slot, std::int64_t at) {
    return slot.codes ? slot.codes + at : slot.pairs + SlotPairsOf(at);
  }

  static std::uint32_t Low(std::int64_t index) {
    return static_cast<std::uint32_t>(index);
  }

  const Update& update_;
  const Parameter& parameter_;
  const MasterPair& pair_;
  const UpdateHyperparameters u_;
  const UpdateKernel& kernel_;
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_UPDATE_OF_BLOCKS_H_
