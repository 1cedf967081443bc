// The step of kAdafactor on a CPU. A pass over the gradients has the means of rows and
// columns, a second one the norm of the directions, and the third moves the masters. Chunks
// are whole rows of one matrix, or part of a variable that has none; v is stored by the
// third pass alone.
//
// Build and test:
//   cmake -S custom_ops -B build/cpp -DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF &&
//   cmake --build build/cpp --target update_cpu_test && build/cpp/update_cpu_test

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cpu/update/chunks.h"
#include "cpu/update/norms.h"
#include "cpu/update/update_of_blocks.h"

namespace keras_mp {
namespace {

// At least 16, where a matrix has them, so that the sums of the columns of each chunk are
// few beside its elements. At most as many as FP32 may add up.
constexpr std::int64_t kFewestRows = 16, kMostRows = 1024;

// Rows of one matrix: columns [column, column + columns) of the row-th one and those after
// it, from the element `at` on. They are contiguous, and one block.
struct Rows {
  std::int64_t at, row, count, column, columns;
  std::int64_t size() const { return count * columns; }
};

// Calls work(rows) for each block of a chunk of rows of the matrices.
template <class Work>
void ForRows(const Chunk& chunk, std::int64_t columns, const Work& work) {
  const std::int64_t count = std::max<std::int64_t>(1, kUpdateBlock / columns);
  const std::int64_t width = std::min(columns, kUpdateBlock);
  const std::int64_t end = chunk.end / columns;
  for (std::int64_t row = chunk.begin / columns; row < end; row += count) {
    for (std::int64_t column = 0; column < columns; column += width) {
      work(Rows{row * columns + column, row, std::min(count, end - row), column,
                std::min(width, columns - column)});
    }
  }
}

// A matrix of a variable, and its chunks [first, end). A variable without matrices is one
// matrix without columns.
struct Matrix {
  std::int64_t array, number;
  std::size_t first, end;
  float mean_of_r = 0;
};

struct Chunks {
  std::vector<Chunk> chunks;
  std::vector<Matrix> matrices;
  std::vector<std::size_t> matrix_of;  // of each chunk
  // Where the sums of the columns of each chunk begin, and how many there are in all.
  std::vector<std::int64_t> columns_at;
  std::int64_t columns = 0;
};

Chunks CutRows(const Update& update) {
  Chunks cut;
  const auto add = [&](std::int64_t array, std::int64_t number, std::int64_t size,
                       std::int64_t step, std::int64_t columns) {
    const std::size_t first = cut.chunks.size();
    const std::int64_t end = (number + 1) * size;
    for (std::int64_t begin = number * size; begin < end; begin += step) {
      cut.chunks.push_back({array, begin, std::min(begin + step, end)});
      cut.matrix_of.push_back(cut.matrices.size());
      cut.columns_at.push_back(cut.columns);
      cut.columns += columns;
    }
    cut.matrices.push_back({array, number, first, cut.chunks.size()});
  };
  for (std::int64_t array = 0; array < update.count; ++array) {
    const auto& [count, rows, columns] = update.matrices[array];
    const std::int64_t size = update.parameters[array].gradient.size;
    if (size == 0) continue;
    if (count == 0) {
      add(array, 0, size, kChunkSize, 0);
      continue;
    }
    const std::int64_t most = std::clamp(kChunkSize / columns, kFewestRows, kMostRows);
    for (std::int64_t i = 0; i < count; ++i) {
      add(array, i, rows * columns, most * columns, columns);
    }
  }
  return cut;
}

// The sums of squares over a variable.
struct Squares {
  double of_masters = 0;
  double of_directions = 0;

  // The rate at which its masters move along the directions.
  float Rate(const UpdateHyperparameters& u, bool decays, std::int64_t size) const {
    const double kept = decays ? 1.0 - double{u.weight_decay} * u.learning_rate : 1.0;
    const auto root = [&](double sum) { return std::sqrt(sum / static_cast<double>(size)); };
    const double rms_of_masters = root(of_masters) * std::abs(kept);
    const double rms_of_directions = root(of_directions);
    return static_cast<float>(u.alpha * Largest(u.epsilon_2, rms_of_masters) /
                              Largest(1, rms_of_directions / u.threshold));
  }

 private:
  // NaN stays.
  static double Largest(double least, double x) { return x <= least ? least : x; }
};

// The parts of the step of one variable.
class AdafactorOfChunk {
 public:
  AdafactorOfChunk(const Update& update, const Chunk& chunk, const UpdateKernel& kernel)
      : parameter_(update.parameters[chunk.array]),
        chunk_(chunk),
        rows_(update.matrices[chunk.array].rows),
        columns_(update.matrices[chunk.array].columns),
        u_(*update.hyperparameters),
        kernel_(kernel),
        blocks_(update, parameter_, kernel) {}

  // The first pass: the rows' means, the sums of columns, and of the squares of masters.
  void StepRows(Squares& squares, float* of_columns) const {
    std::fill_n(of_columns, columns_, 0.0f);
    double of_row = 0;
    ForRows(chunk_, columns_, [&](const Rows& rows) {
      float g[kUpdateBlock], of_rows[kUpdateBlock], master[kUpdateBlock];
      ReadGradient(rows.at, rows.size(), g);
      kernel_.adafactor.sums(u_, g, rows.count, rows.columns, of_rows,
                             of_columns + rows.column);
      squares.of_masters += SquaresOfMasters(rows.at, rows.size(), master);
      of_row = (rows.column == 0 ? 0 : of_row) + of_rows[0];
      if (rows.column + rows.columns < columns_) return;
      of_rows[0] = static_cast<float>(of_row);
      for (std::int64_t i = 0; i < rows.count; ++i) {
        of_rows[i] /= static_cast<float>(columns_);
      }
      kernel_.adafactor.average(u_, of_rows, rows.count, r() + rows.row);
    });
  }

  // The first and the second, where there are no matrices.
  void StepVector(Squares& squares) const {
    ForBlocks(chunk_, [&](std::int64_t at, std::int64_t n) {
      float g[kUpdateBlock], h[kUpdateBlock] = {}, master[kUpdateBlock], sum;
      ReadGradient(at, n, g);
      kernel_.adafactor.sums(u_, g, 1, n, &sum, h);
      kernel_.adafactor.average(u_, h, n, v() + at);
      squares.of_masters += SquaresOfMasters(at, n, master);
      squares.of_directions += kernel_.adafactor.directions(g, v() + at, n);
    });
  }

  // The second pass.
  void SumDirections(float mean_of_r, Squares& squares) const {
    ForRows(chunk_, columns_, [&](const Rows& rows) {
      float g[kUpdateBlock], variance[kUpdateBlock];
      ReadGradient(rows.at, rows.size(), g);
      ComputeV(rows, mean_of_r, variance);
      squares.of_directions += kernel_.adafactor.directions(g, variance, rows.size());
    });
  }

  // The third pass, which stores v.
  void StepMasters(float mean_of_r, float rate) const {
    if (columns_ == 0) {
      ForBlocks(chunk_,
                [&](std::int64_t at, std::int64_t n) { StepMastersOf(at, n, rate); });
      return;
    }
    ForRows(chunk_, columns_, [&](const Rows& rows) {
      ComputeV(rows, mean_of_r, v() + rows.at);
      StepMastersOf(rows.at, rows.size(), rate);
    });
  }

 private:
  float* v() const { return parameter_.slots[0].values; }
  float* r() const { return parameter_.slots[1].values; }
  float* c() const { return parameter_.slots[2].values; }

  void ReadGradient(std::int64_t at, std::int64_t n, float* g) const {
    blocks_.ReadGradient(at, n, g);
    kernel_.clip(u_, g, n);
  }

  double SquaresOfMasters(std::int64_t at, std::int64_t n, float* buffer) const {
    return kernel_.sum_of_squares(blocks_.ReadMaster(at, n, buffer), n);
  }

  void ComputeV(const Rows& rows, float mean_of_r, float* to) const {
    const std::int64_t matrix = rows.row / rows_;
    kernel_.adafactor.products(r() + rows.row, mean_of_r,
                               c() + matrix * columns_ + rows.column, rows.count,
                               rows.columns, to);
  }

  void StepMastersOf(std::int64_t at, std::int64_t n, float rate) const {
    float g[kUpdateBlock], buffer[kUpdateBlock];
    ReadGradient(at, n, g);
    float* const master = blocks_.ReadMaster(at, n, buffer);
    kernel_.adafactor.masters(u_, parameter_.apply_weight_decay, rate, g, v() + at, n,
                              master);
    blocks_.WriteMaster(at, n, master);
  }

  const Parameter& parameter_;
  const Chunk& chunk_;
  const std::int64_t rows_, columns_;  // of a matrix
  const UpdateHyperparameters u_;
  const UpdateKernel& kernel_;
  const UpdateOfBlocks blocks_;
};

// Updates c, by the sums of the columns of each chunk, which are each other's neighbours
// from `of_columns` on. The means take the place of the first. Returns the mean of r.
float StepColumns(const Update& update, const Matrix& matrix, float* of_columns,
                  const UpdateKernel& kernel) {
  const Parameter& parameter = update.parameters[matrix.array];
  const auto& [count, rows, columns] = update.matrices[matrix.array];
  const auto chunks = static_cast<std::int64_t>(matrix.end - matrix.first);
  for (std::int64_t k = 0; k < columns; ++k) {
    double sum = 0;
    for (std::int64_t i = 0; i < chunks; ++i) sum += of_columns[i * columns + k];
    of_columns[k] = static_cast<float>(sum / static_cast<double>(rows));
  }
  kernel.adafactor.average(*update.hyperparameters, of_columns, columns,
                           parameter.slots[2].values + matrix.number * columns);
  const float* const r = parameter.slots[1].values + matrix.number * rows;
  double of_r = 0;
  for (std::int64_t i = 0; i < rows; ++i) of_r += r[i];
  return static_cast<float>(of_r / static_cast<double>(rows));
}

}  // namespace

void UpdateAdafactor(const Update& update, const Parallel& parallel,
                     const UpdateKernel& kernel) {
  Chunks cut = CutRows(update);
  const std::vector<Chunk>& chunks = cut.chunks;
  const auto columns_of = [&](const Chunk& chunk) {
    return update.matrices[chunk.array].columns;
  };
  // Each pass begins with the chunks that the one before has left in the cache.
  const auto backward = [&](std::int64_t i) { return chunks.size() - 1 - i; };

  std::vector<Squares> of_chunks(chunks.size());
  const std::unique_ptr<float[]> of_columns(new float[cut.columns]);
  ForChunks(parallel, chunks, [&](std::int64_t k) {
    const std::size_t i = backward(k);
    const AdafactorOfChunk step(update, chunks[i], kernel);
    columns_of(chunks[i]) ? step.StepRows(of_chunks[i], &of_columns[cut.columns_at[i]])
                          : step.StepVector(of_chunks[i]);
  });

  const auto matrices = static_cast<std::int64_t>(cut.matrices.size());
  ParallelFor(parallel, matrices, kChunkSize, [&](std::int64_t i) {
    Matrix& matrix = cut.matrices[i];
    if (columns_of(chunks[matrix.first])) {
      float* const of_first = &of_columns[cut.columns_at[matrix.first]];
      matrix.mean_of_r = StepColumns(update, matrix, of_first, kernel);
    }
  });

  const auto mean_of_r = [&](std::size_t i) {
    return cut.matrices[cut.matrix_of[i]].mean_of_r;
  };
  ForChunks(parallel, chunks, [&](std::int64_t i) {
    if (!columns_of(chunks[i])) return;
    const AdafactorOfChunk step(update, chunks[i], kernel);
    step.SumDirections(mean_of_r(i), of_chunks[i]);
  });

  std::vector<Squares> of_arrays(update.count);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    of_arrays[chunks[i].array].of_masters += of_chunks[i].of_masters;
    of_arrays[chunks[i].array].of_directions += of_chunks[i].of_directions;
  }
  ForChunks(parallel, chunks, [&](std::int64_t k) {
    const std::size_t i = backward(k);
    const std::int64_t array = chunks[i].array;
    const Parameter& parameter = update.parameters[array];
    const float rate = of_arrays[array].Rate(
        *update.hyperparameters, parameter.apply_weight_decay, parameter.gradient.size);
    AdafactorOfChunk(update, chunks[i], kernel).StepMasters(mean_of_r(i), rate);
  });
}

}  // namespace keras_mp
