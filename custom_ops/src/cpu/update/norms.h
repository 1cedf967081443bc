// The steps of the rules that need sums over whole variables.

#ifndef KERAS_MP_SRC_CPU_UPDATE_NORMS_H_
#define KERAS_MP_SRC_CPU_UPDATE_NORMS_H_

#include "cpu/runtime/parallel.h"
#include "cpu/update/update_kernel.h"
#include "keras_mp/update.h"

namespace keras_mp {

void UpdateLamb(const Update& update, const Parallel& parallel,
                const UpdateKernel& kernel);
void UpdateAdafactor(const Update& update, const Parallel& parallel,
                     const UpdateKernel& kernel);

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_UPDATE_NORMS_H_
