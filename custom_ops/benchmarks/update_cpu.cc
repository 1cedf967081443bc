// How long does a step of Adam take on this CPU, in each form of masters and moments?
// Prints a table in Markdown.
//
//   update_cpu_benchmark [number of threads, 2 by default]
//
// 16 variables of a million numbers; the median of 21 steps, in which the forms take
// turns, with the check of the gradients, which a bare FP32 optimizer does without. Bytes:
// of gradient, weight, master and moments, for a number.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "keras_mp/update_cpu.h"

namespace keras_mp {
namespace {

constexpr int kCount = 16;
constexpr std::int64_t kSize = 1000000;
constexpr int kSteps = 21;

struct Form {
  const char* name;
  bool has_fp32_gradient, has_master;
  int remainder_bits;
  bool has_codes;
};

constexpr Form kForms[] = {
    {"bare FP32", true, true, 0, false},
    {"FP32 masters", false, true, 0, false},
    {"remainders", false, false, 16, false},
    {"8-bit remainders", false, false, 8, false},
    {"8-bit moments", false, true, 0, true},
    {"remainders, 8-bit moments", false, false, 16, true},
    {"8-bit remainders and moments", false, false, 8, true},
    {"no masters, 8-bit moments", false, false, 0, true},
};

// The variables of a form.
class Variables {
 public:
  explicit Variables(const Form& form) : form_(form) {
    hyperparameters_.scale = 32768;
    hyperparameters_.alpha = 1e-3f;
    hyperparameters_.one_minus_beta_1 = 0.1f;
    hyperparameters_.one_minus_beta_2 = 0.001f;
    hyperparameters_.epsilon = 1e-7f;
    for (int i = 0; i < kCount; ++i) {
      Parameter parameter;
      const DataType type = form.has_fp32_gradient ? DataType::kFloat : DataType::kHalf;
      void* const values =
          form.has_fp32_gradient ? static_cast<void*>(New<float>(0x1p-3f)) : New<std::uint16_t>(0x3c00);
      parameter.gradient = {kSize, type, values};
      parameter.pair.size = kSize;
      if (form.has_master) parameter.pair.master = New<float>(1);
      if (!form.has_fp32_gradient) parameter.pair.weight = New<std::uint16_t>(0x3c00);
      if (form.remainder_bits == 16) parameter.pair.remainder = New<std::int16_t>(0);
      if (form.remainder_bits == 8) parameter.pair.short_remainder = New<std::int8_t>(0);
      for (int k = 0; k < SlotsOf(UpdateRule::kAdam); ++k) {
        if (form.has_codes) {
          parameter.slots[k].codes = New<std::uint8_t>(100);
          parameter.slots[k].exponents = New<std::uint8_t>(110, SlotGroupsOf(kSize));
        } else {
          parameter.slots[k].values = New<float>(1e-3f);
        }
      }
      gradients_.push_back(parameter.gradient);
      parameters_.push_back(parameter);
    }
  }

  // Milliseconds of a step.
  double Step(const Parallel& threads) {
    hyperparameters_.noise_low += 1;
    float largest[kCount];
    GradientCheck check;
    check.count = kCount;
    check.gradients = gradients_.data();
    check.scale = &hyperparameters_.scale;
    check.largest = largest;
    Update update;
    update.count = kCount;
    update.parameters = parameters_.data();
    update.rule = UpdateRule::kAdam;
    update.hyperparameters = &hyperparameters_;
    const auto start = std::chrono::steady_clock::now();
    const bool is_bare = form_.has_fp32_gradient;
    if (!(is_bare || CheckGradientsCpu(check, threads).ok()) ||
        !UpdateCpu(update, threads).ok()) {
      std::printf("the step failed\n");
      std::exit(1);
    }
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    return spent.count();
  }

  double bytes() const { return bytes_ / (double{kCount} * kSize); }

 private:
  template <class Number>
  Number* New(Number value, std::int64_t size = kSize) {
    const std::size_t bytes = size * sizeof(Number);
    bytes_ += static_cast<double>(bytes);
    memory_.emplace_back(bytes);
    auto* const numbers = reinterpret_cast<Number*>(memory_.back().data());
    std::fill_n(numbers, size, value);
    return numbers;
  }

  Form form_;
  UpdateHyperparameters hyperparameters_;
  std::vector<std::vector<char>> memory_;
  std::vector<Gradient> gradients_;
  std::vector<Parameter> parameters_;
  double bytes_ = 0;
};

// `Parallel::run`: `state` is an int, the number of threads.
void RunOnThreads(void* state, std::int64_t count, void* context, Parallel::Body body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next++) < count;) body(context, i);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < *static_cast<int*>(state); ++i) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
}

int Main(int threads) {
  const Parallel parallel = {threads, &threads, RunOnThreads};
  std::vector<Variables> variables(std::begin(kForms), std::end(kForms));
  std::vector<std::vector<double>> times(variables.size());
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < variables.size(); ++i) {
      times[i].push_back(variables[i].Step(parallel));
    }
  }
  std::printf("| %s, %d threads | bytes a number | ms | of bare FP32 |\n"
              "|---|---|---|---|\n",
              Name(ChosenIsa()), threads);
  double bare = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double ms = times[i][kSteps / 2];
    if (i == 0) bare = ms;
    std::printf("| %s | %.2f | %.2f | %.2f |\n", kForms[i].name, variables[i].bytes(), ms,
                ms / bare);
  }
  return 0;
}

}  // namespace
}  // namespace keras_mp

int main(int argc, char** argv) {
  return keras_mp::Main(argc > 1 ? std::atoi(argv[1]) : 2);
}
