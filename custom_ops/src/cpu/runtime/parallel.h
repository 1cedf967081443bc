// Many small pieces of work as tasks that are worth a thread.

#ifndef KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_
#define KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "common/ceil_div.h"
#include "keras_mp/cpu.h"

namespace keras_mp {

// Numbers of 16 bits that a task has: to convert and add them up takes 10 microseconds.
constexpr std::int64_t kNumbersOfATask = 1 << 14;

// Whether a tensor of these sizes has no numbers: its other sizes may be beyond what a
// loop can count or memory hold.
inline bool HasNone(std::initializer_list<std::int64_t> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

// Calls work(i) for each i of [0, count), pieces of `numbers` each.
template <class Work>
void ForPieces(const Parallel& parallel, std::int64_t count, std::int64_t numbers,
               const Work& work) {
  struct Tasks {
    const Work& work;
    std::int64_t count, of_a_task;
  };
  const std::int64_t of_a_task =
      std::max<std::int64_t>(1, kNumbersOfATask / std::max<std::int64_t>(1, numbers));
  const std::int64_t tasks = CeilDiv(count, of_a_task);
  if (parallel.run == nullptr || parallel.threads == 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  Tasks all = {work, count, of_a_task};
  parallel.run(parallel.state, tasks, &all, [](void* context, std::int64_t task) {
    const Tasks& all = *static_cast<Tasks*>(context);
    const std::int64_t first = task * all.of_a_task;
    const std::int64_t end = std::min(first + all.of_a_task, all.count);
    for (std::int64_t i = first; i < end; ++i) all.work(i);
  });
}

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_RUNTIME_PARALLEL_H_
