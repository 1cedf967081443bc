// The step of kLamb on a CPU: a pass for the norms, and one for the masters.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/update/chunks.h"
#include "cpu/update/norms.h"
#include "cpu/update/update_of_blocks.h"

namespace keras_mp {
namespace {

// The sums that the norms of kLamb are the roots of.
struct Squares {
  double of_master = 0;
  double of_direction = 0;

  Squares& operator+=(const Squares& other) {
    of_master += other.of_master;
    of_direction += other.of_direction;
    return *this;
  }

  // The rate at which a master moves.
  float Rate(float learning_rate) const {
    const float master = std::sqrt(static_cast<float>(of_master));
    const float direction = std::sqrt(static_cast<float>(of_direction));
    const bool has_ratio = master > 0 && direction > 0;
    return (has_ratio ? master / direction : 1.0f) * learning_rate;
  }
};

// The two passes over blocks of one variable.
class LambOfBlocks {
 public:
  LambOfBlocks(const Update& update, const Parameter& parameter,
               const UpdateKernel& kernel)
      : parameter_(parameter),
        u_(*update.hyperparameters),
        kernel_(kernel),
        blocks_(update, parameter, kernel) {}

  // The first pass.
  void StepSlots(std::int64_t at, std::int64_t n, Squares& squares) const {
    float g[kUpdateBlock], master_buffer[kUpdateBlock], of_block[2];
    blocks_.ReadGradient(at, n, g);
    float* const slots[] = {parameter_.slots[0].values + at,
                            parameter_.slots[1].values + at};
    kernel_.lamb_slots(u_, parameter_.apply_weight_decay, g,
                       blocks_.ReadMaster(at, n, master_buffer), slots, n, of_block);
    squares.of_master += of_block[0];
    squares.of_direction += of_block[1];
  }

  // The second pass.
  void StepMaster(std::int64_t at, std::int64_t n, float rate) const {
    float master_buffer[kUpdateBlock];
    float* const master = blocks_.ReadMaster(at, n, master_buffer);
    const float* const slots[] = {parameter_.slots[0].values + at,
                                  parameter_.slots[1].values + at};
    kernel_.lamb_masters(u_, parameter_.apply_weight_decay, rate, master, slots, n);
    blocks_.WriteMaster(at, n, master);
  }

 private:
  const Parameter& parameter_;
  const UpdateHyperparameters u_;
  const UpdateKernel& kernel_;
  const UpdateOfBlocks blocks_;
};

}  // namespace

// A variable of one chunk takes the second pass while it is in the cache.
void UpdateLamb(const Update& update, const Parallel& parallel,
                const UpdateKernel& kernel) {
  auto chunks = Cut(
      update.count, [&](std::int64_t i) { return update.parameters[i].gradient.size; });
  // The last chunks first: the check has left them in the cache.
  std::reverse(chunks.begin(), chunks.end());
  const auto of_blocks = [&](const Chunk& chunk) {
    return LambOfBlocks(update, update.parameters[chunk.array], kernel);
  };
  const auto move = [&](const Chunk& chunk, const Squares& squares) {
    const LambOfBlocks blocks = of_blocks(chunk);
    const float rate = squares.Rate(update.hyperparameters->learning_rate);
    ForBlocks(chunk, [&](std::int64_t at, std::int64_t n) {
      blocks.StepMaster(at, n, rate);
    });
  };
  const auto is_whole = [&](const Chunk& chunk) {
    return chunk.end - chunk.begin == update.parameters[chunk.array].gradient.size;
  };
  std::vector<Squares> of_chunks(chunks.size());
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    const LambOfBlocks blocks = of_blocks(chunks[i]);
    ForBlocks(chunks[i], [&](std::int64_t at, std::int64_t n) {
      blocks.StepSlots(at, n, of_chunks[i]);
    });
    if (is_whole(chunks[i])) move(chunks[i], of_chunks[i]);
  });
  std::vector<Squares> of_arrays(update.count);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    of_arrays[chunks[i].array] += of_chunks[i];
  }
  chunks.erase(std::remove_if(chunks.begin(), chunks.end(), is_whole), chunks.end());
  // The last chunks first: the first pass has left them in the cache.
  std::reverse(chunks.begin(), chunks.end());
  ForChunks(parallel, chunks,
            [&](std::int64_t i) { move(chunks[i], of_arrays[chunks[i].array]); });
}

}  // namespace keras_mp
