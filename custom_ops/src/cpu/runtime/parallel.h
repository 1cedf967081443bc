// A parallel for loop that groups small iterations into tasks.

#ifndef KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_
#define KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "common/ceil_div.h"
#include "keras_mp/cpu.h"

namespace keras_mp {

// 16-bit elements of a task: to convert and sum them takes 10 microseconds.
constexpr std::int64_t kElementsPerTask = 1 << 14;

// Whether a tensor with these dimensions has no elements. Its other dimensions may then
// be larger than a loop can count or memory can hold.
inline bool IsEmpty(std::initializer_list<std::int64_t> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

// Calls work(i) for each i in [0, count), where one i is about `elements` elements of
// work.
template <class Work>
void ParallelFor(const Parallel& parallel, std::int64_t count, std::int64_t elements,
                 const Work& work) {
  struct Tasks {
    const Work& work;
    std::int64_t count, per_task;
  };
  const std::int64_t per_task =
      std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, elements));
  const std::int64_t tasks = CeilDiv(count, per_task);
  if (parallel.run == nullptr || parallel.threads == 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  Tasks all = {work, count, per_task};
  parallel.run(parallel.state, tasks, &all, [](void* context, std::int64_t task) {
    const Tasks& all = *static_cast<Tasks*>(context);
    const std::int64_t first = task * all.per_task;
    const std::int64_t end = std::min(first + all.per_task, all.count);
    for (std::int64_t i = first; i < end; ++i) all.work(i);
  });
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_
