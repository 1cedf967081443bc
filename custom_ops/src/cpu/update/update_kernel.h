// The functions of the update step that each instruction set provides, on contiguous
// blocks of n <= kUpdateBlock elements. They are compiled apart from the other kernels,
// with -ffp-contract=off: no multiply and add may become one operation.

#ifndef KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_H_
#define KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_H_

#include <cstdint>

#include "keras_mp/cpu.h"
#include "keras_mp/update.h"

namespace keras_mp {

// So that a block of a gradient, a master and three slots stays in the L1 cache.
constexpr std::int64_t kUpdateBlock = 1024;

struct UpdateKernel {
  // to = x / scale. Returns the bits of the largest magnitude among the quotients: as
  // integers they have the order of the magnitudes, and those of NaN come last.
  std::int32_t (*unscale)(const void* x, DataType type, std::int64_t n, float scale,
                          float* to);
  // Copies past the caches, where the instruction set can. A fence has to follow before
  // another thread reads.
  void (*stream)(const float* from, std::int64_t n, float* to);
  float (*sum_of_squares)(const float* x, std::int64_t n);
  // master = weight where the weight is not a rounding of the master.
  void (*sync_masters)(float* master, const std::uint16_t* weight, DataType type,
                       std::int64_t n, Rounding rounding);
  // weight = round(master): to nearest even where `uniforms` is null, else
  // stochastically.
  void (*cast)(const float* master, std::uint16_t* weight, DataType type,
               std::int64_t n, const float* uniforms);
  // The same with random numbers for the elements from the index `first` on.
  void (*cast_with_noise)(const float* master, std::uint16_t* weight, DataType type,
                          std::int64_t n, std::uint32_t first,
                          const UpdateHyperparameters& hyperparameters);
  // Expands and compresses masters with remainders.
  void (*join)(const std::uint16_t* weight, const std::int16_t* remainder, DataType type,
               std::int64_t n, float* master);
  void (*split)(const float* master, DataType type, std::int64_t n,
                std::uint16_t* weight, std::int16_t* remainder);
  // The same with remainders of 8 bits, and random numbers for the elements from the index
  // `first` on.
  void (*join_short)(const std::uint16_t* weight, const std::int8_t* remainder,
                     DataType type, std::int64_t n, float* master);
  void (*split_short)(const float* master, DataType type, std::int64_t n,
                      std::uint32_t first, const UpdateHyperparameters& hyperparameters,
                      std::uint16_t* weight, std::int8_t* remainder);
  // Expands and compresses slots, from the index `first` on, a multiple of kSlotGroup.
  // `codes` are those of 8 bits, or the pairs of 4.
  void (*decode)(SlotCode code, int bits, const std::uint8_t* codes,
                 const std::uint8_t* exponents, std::int64_t n, float* to);
  void (*encode)(SlotCode code, int bits, const float* x, std::int64_t n,
                 std::uint32_t first, const UpdateHyperparameters& hyperparameters,
                 int slot, std::uint8_t* codes, std::uint8_t* exponents);
  // Clips the un-scaled gradients g, and updates masters and slots by them, and by
  // `powers`, if that is not null.
  void (*step)(UpdateRule rule, const UpdateHyperparameters& hyperparameters,
               bool apply_weight_decay, float* g, const float* powers, float* master,
               float* const* slots, std::int64_t n);
  // The two passes of kLamb. The first updates the slots, and stores the sums of the
  // squares of the masters and of the directions that they are to move in; the second
  // moves the masters, at the rate |w| / |d| lr.
  void (*lamb_slots)(const UpdateHyperparameters& hyperparameters,
                     bool apply_weight_decay, float* g, const float* master,
                     float* const* slots, std::int64_t n, float* squares);
  void (*lamb_masters)(const UpdateHyperparameters& hyperparameters,
                       bool apply_weight_decay, float rate, float* master,
                       const float* const* slots, std::int64_t n);
  void (*clip)(const UpdateHyperparameters& hyperparameters, float* g, std::int64_t n);
  // The parts of kAdafactor. `sums` stores those of h over the columns of each row, and
  // adds h to those of each column; `average` has to = beta_2 to + (1 - beta_2) means;
  // `products` computes v for some rows; `directions` returns the sum of their squares;
  // and `masters` moves the masters by rate d.
  struct {
    void (*sums)(const UpdateHyperparameters& hyperparameters, const float* g,
                 std::int64_t rows, std::int64_t columns, float* of_rows,
                 float* of_columns);
    void (*average)(const UpdateHyperparameters& hyperparameters, const float* means,
                    std::int64_t n, float* to);
    void (*products)(const float* r, float mean_of_r, const float* c, std::int64_t rows,
                     std::int64_t columns, float* v);
    float (*directions)(const float* g, const float* v, std::int64_t n);
    void (*masters)(const UpdateHyperparameters& hyperparameters, bool apply_weight_decay,
                    float rate, const float* g, const float* v, std::int64_t n,
                    float* master);
  } adafactor;
};

// Null where the library was built without the instruction set.
const UpdateKernel* PortableUpdateKernel();
const UpdateKernel* NeonUpdateKernel();
const UpdateKernel* Avx2UpdateKernel();
const UpdateKernel* Avx512UpdateKernel();

const UpdateKernel* UpdateKernelOf(Isa isa);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_UPDATE_KERNEL_H_
