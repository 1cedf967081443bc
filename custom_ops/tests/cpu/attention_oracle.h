// The formulas of keras_mp/attention.h in double precision, with bounds of the errors, and
// the problems that the kernel is tested on.

#ifndef KERAS_MP_TESTS_CPU_ATTENTION_ORACLE_H_
#define KERAS_MP_TESTS_CPU_ATTENTION_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/attention_cpu.h"

namespace keras_mp {

constexpr double kUnit = 0x1p-24;   // FP32 rounds to within this of a number
constexpr double kExpError = 0x1p-22;
constexpr double kTiny = 0x1p-120;  // exponentials below e^-87 are 0

// Numbers in one of the formats, with a guard at the end.
class Tensor {
 public:
  static constexpr std::uint16_t kGuard = 0xa5a5;
  static constexpr float kFloatGuard = -12345;

  Tensor(DataType type, std::int64_t size) : type_(type) {
    if (type == DataType::kFloat) {
      floats_.assign(size + 1, kFloatGuard);
    } else {
      halves_.assign(size + 1, kGuard);
    }
  }
  Tensor(DataType type, std::int64_t size, float deviation, std::mt19937& random)
      : Tensor(type, size) {
    std::normal_distribution<float> normal(0, deviation);
    for (std::int64_t i = 0; i < size; ++i) Set(i, normal(random));
  }

  void Set(std::int64_t i, float x) {
    if (type_ == DataType::kFloat) {
      floats_[i] = x;
    } else {
      halves_[i] = To16(type_, x);
    }
  }
  double operator[](std::int64_t i) const {
    return type_ == DataType::kFloat ? floats_[i] : From16(type_, halves_[i]);
  }
  void* data() {
    return type_ == DataType::kFloat ? static_cast<void*>(floats_.data())
                                     : halves_.data();
  }
  const void* data() const { return const_cast<Tensor*>(this)->data(); }
  std::int64_t size() const {
    return static_cast<std::int64_t>(floats_.size() + halves_.size()) - 1;
  }
  bool KeptGuard() const {
    return type_ == DataType::kFloat ? floats_.back() == kFloatGuard
                                     : halves_.back() == kGuard;
  }
  bool operator==(const Tensor& other) const {
    return floats_ == other.floats_ && halves_ == other.halves_;
  }

 private:
  DataType type_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

// A number and by how much the result of a kernel may differ from it before it is rounded.
struct Bounded {
  double value = 0, error = 0;

  void Add(double term, double error_of_term) {
    value += term;
    error += error_of_term;
  }
};

enum class Mask { kNone, kKeys, kQueries, kPairs };

struct Shape {
  std::int64_t batch, queries, keys, heads, key_heads, key_size, value_size;
};

struct Case {
  Attention a;
  Tensor query, key, value, grad;
  std::vector<std::uint8_t> mask;

  Case(const Shape& s, DataType type, bool is_causal, Mask kind, std::mt19937& random,
       float deviation = 1)
      : query(type, s.batch * s.queries * s.heads * s.key_size, deviation, random),
        key(type, s.batch * s.keys * s.key_heads * s.key_size, deviation, random),
        value(type, s.batch * s.keys * s.key_heads * s.value_size, 1, random),
        grad(type, s.batch * s.queries * s.heads * s.value_size, 1, random) {
    a.batch = s.batch;
    a.queries = s.queries;
    a.keys = s.keys;
    a.heads = s.heads;
    a.key_heads = s.key_heads;
    a.key_size = s.key_size;
    a.value_size = s.value_size;
    a.type = type;
    a.scale = 1 / std::sqrt(static_cast<float>(std::max<std::int64_t>(1, s.key_size)));
    a.is_causal = is_causal;
    MakeMask(kind, random);
  }

  void MakeMask(Mask kind, std::mt19937& random) {
    const auto fill = [&](std::int64_t size) {
      mask.resize(size);
      for (auto& one : mask) one = random() % 3 > 0;
    };
    if (kind == Mask::kKeys) {  // [batch, 1, 1, keys]
      fill(a.batch * a.keys);
      a.mask_strides[0] = a.keys;
      a.mask_strides[3] = 1;
    } else if (kind == Mask::kQueries) {  // [1, heads, queries, 1]
      fill(a.heads * a.queries);
      a.mask_strides[1] = a.queries;
      a.mask_strides[2] = 1;
    } else if (kind == Mask::kPairs) {  // [batch, heads, queries, keys]
      fill(a.batch * a.heads * a.queries * a.keys);
      a.mask_strides[0] = a.heads * a.queries * a.keys;
      a.mask_strides[1] = a.queries * a.keys;
      a.mask_strides[2] = a.keys;
      a.mask_strides[3] = 1;
      // Some queries see no key.
      for (std::int64_t row = 0; row < a.batch * a.heads * a.queries; row += 5) {
        std::fill_n(mask.begin() + row * a.keys, a.keys, 0);
      }
    }
  }

  void SetDropout(float dropout, std::mt19937& random) {
    a.dropout = dropout;
    for (std::uint32_t& word : a.seed) word = random();
  }

  Attention Problem() const {
    Attention problem = a;
    problem.query = query.data();
    problem.key = key.data();
    problem.value = value.data();
    problem.mask = mask.empty() ? nullptr : mask.data();
    return problem;
  }

  bool Sees(std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t c) const {
    if (a.is_causal && c > t) return false;
    const std::int64_t at = b * a.mask_strides[0] + n * a.mask_strides[1] +
                            t * a.mask_strides[2] + c * a.mask_strides[3];
    return mask.empty() || mask[at] != 0;
  }
};

struct Results {
  Tensor result, grad_query, grad_key, grad_value;
  std::vector<float> log_sum_exp;

  explicit Results(const Case& one)
      : result(one.a.type, one.grad.size()),
        grad_query(one.a.type, one.query.size()),
        grad_key(one.a.type, one.key.size()),
        grad_value(one.a.type, one.value.size()),
        log_sum_exp(one.a.batch * one.a.heads * one.a.queries + 1,
                    Tensor::kFloatGuard) {}

  void Run(const Case& one, Isa isa, int threads) {
    const Parallel parallel = {threads, &threads, RunOnThreads};
    const Attention problem = one.Problem();
    const Status forward =
        AttentionCpu(problem, {result.data(), log_sum_exp.data()}, parallel, isa);
    EXPECT(forward.ok(), "%s", forward.message);
    const Status backward = AttentionGradientCpu(
        problem,
        {result.data(), log_sum_exp.data(), one.grad.data(), grad_query.data(),
         grad_key.data(), grad_value.data()},
        parallel, isa);
    EXPECT(backward.ok(), "%s", backward.message);
    EXPECT(result.KeptGuard() && grad_query.KeptGuard() && grad_key.KeptGuard() &&
               grad_value.KeptGuard() && log_sum_exp.back() == Tensor::kFloatGuard,
           "wrote behind a result");
  }

  bool operator==(const Results& other) const {
    return result == other.result && grad_query == other.grad_query &&
           grad_key == other.grad_key && grad_value == other.grad_value &&
           log_sum_exp == other.log_sum_exp;
  }
};

// The hash of common/attention_dropout.h, written anew.
inline std::uint32_t Lowbias32(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline std::uint32_t DropoutBits(const Attention& a, std::int64_t b, std::int64_t n,
                                 std::int64_t t, std::int64_t c) {
  const auto mix = [](std::int64_t x) {
    return Lowbias32(static_cast<std::uint32_t>(x));
  };
  const std::uint32_t head =
      mix(mix(mix(a.seed[0] + 0x9e3779b9u) ^ a.seed[1]) + b * a.heads + n);
  const std::uint32_t first = mix(head + t);
  return mix(mix(first + c) ^ mix(first ^ head));
}

// The formulas of keras_mp/attention.h in double precision, with bounds of the errors.
class Oracle {
 public:
  std::vector<Bounded> result, grad_query, grad_key, grad_value;

  // `isa`: whether it rounds the factors of the gradients.
  Oracle(const Case& one, Isa isa)
      : one_(one),
        a_(one.a),
        weight_error_(HasParts(one.a.type, isa) ? 1.1 * 0x1p-16 : 0),
        operand_error_(OperandError(one.a.type, isa)) {
    result.resize(one.grad.size());
    grad_query.resize(one.query.size());
    grad_key.resize(one.key.size());
    grad_value.resize(one.value.size());
    for (std::int64_t b = 0; b < a_.batch; ++b) {
      for (std::int64_t n = 0; n < a_.heads; ++n) {
        for (std::int64_t t = 0; t < a_.queries; ++t) AddQuery(b, n, t);
      }
    }
  }

 private:
  void AddQuery(std::int64_t b, std::int64_t n, std::int64_t t) {
    const std::int64_t key_head = n / (a_.heads / a_.key_heads);
    const std::int64_t q = ((b * a_.queries + t) * a_.heads + n) * a_.key_size;
    const std::int64_t y = ((b * a_.queries + t) * a_.heads + n) * a_.value_size;
    const auto k = [&](std::int64_t c) {
      return ((b * a_.keys + c) * a_.key_heads + key_head) * a_.key_size;
    };
    const auto v = [&](std::int64_t c) {
      return ((b * a_.keys + c) * a_.key_heads + key_head) * a_.value_size;
    };

    std::vector<double> score(a_.keys), p(a_.keys), d(a_.keys, 1);
    double most = -HUGE_VAL, error = 0;
    for (std::int64_t c = 0; c < a_.keys; ++c) {
      if (!one_.Sees(b, n, t, c)) continue;
      double sum = 0, magnitude = 0;
      for (std::int64_t h = 0; h < a_.key_size; ++h) {
        sum += one_.query[q + h] * one_.key[k(c) + h];
        magnitude += std::abs(one_.query[q + h] * one_.key[k(c) + h]);
      }
      score[c] = a_.scale * sum;
      most = std::max(most, score[c]);
      error = std::max(error, (a_.key_size + 2) * kUnit * a_.scale * magnitude);
    }
    const bool sees_none = most == -HUGE_VAL;
    double total = 0;
    for (std::int64_t c = 0; c < a_.keys; ++c) {
      p[c] = sees_none                ? 1
             : one_.Sees(b, n, t, c) ? std::exp(score[c] - most)
                                     : 0;
      total += p[c];
    }
    for (double& one : p) one /= total;
    for (std::int64_t c = 0; c < a_.keys && a_.dropout > 0; ++c) {
      const bool keeps = DropoutBits(a_, b, n, t, c) >= 0x1p32 * a_.dropout;
      d[c] = keeps / (1 - static_cast<double>(a_.dropout));
    }
    // Of a probability: the score; its difference to the largest, up to 87, and to
    // log_sum_exp; the exponential, and that of each block by which it is scaled down; and
    // the sums. Twice, as the numerator and the denominator err. The two roundings of the
    // dropout are among the 64.
    const double blocks = a_.keys / 128 + 1;
    const double log_sum_exp = sees_none ? 0 : most + std::log(total);
    const double relative =
        sees_none ? 2 * (a_.keys + 4) * kUnit
                  : std::expm1(2 * (error + kExpError * (2 + blocks) +
                                    kUnit * (90 * blocks + std::abs(log_sum_exp)))) +
                        2 * (a_.keys + 64) * kUnit;

    double mean = 0, mean_error = 0;
    for (std::int64_t i = 0; i < a_.value_size; ++i) {
      double magnitude = 0;
      for (std::int64_t c = 0; c < a_.keys; ++c) {
        result[y + i].value += d[c] * p[c] * one_.value[v(c) + i];
        magnitude += d[c] * (p[c] + kTiny) * std::abs(one_.value[v(c) + i]);
      }
      result[y + i].error = (relative + weight_error_) * magnitude;
      const double g = one_.grad[y + i];
      mean += g * result[y + i].value;
      mean_error += std::abs(g) * (WithRounding(result[y + i]) +
                                   a_.value_size * kUnit * std::abs(result[y + i].value));
    }
    const double queries = static_cast<double>(a_.queries) * a_.heads / a_.key_heads;
    for (std::int64_t c = 0; c < a_.keys; ++c) {
      double slope = 0, magnitude = 0;
      for (std::int64_t i = 0; i < a_.value_size; ++i) {
        const double g = one_.grad[y + i];
        slope += d[c] * g * one_.value[v(c) + i];
        magnitude += d[c] * std::abs(g * one_.value[v(c) + i]);
        grad_value[v(c) + i].Add(d[c] * p[c] * g,
                                 (relative + operand_error_ + queries * kUnit) * d[c] *
                                     (p[c] + kTiny) * std::abs(g));
      }
      // A query that sees no key has no slope.
      if (sees_none) continue;
      const double s = p[c] * (slope - mean);
      const double s_error =
          operand_error_ * (std::abs(s) + p[c] * mean_error) +
          relative * (p[c] + kTiny) * (std::abs(slope - mean) + mean_error) +
          p[c] * ((a_.value_size + 4) * kUnit * magnitude + mean_error);
      for (std::int64_t h = 0; h < a_.key_size; ++h) {
        const double key = a_.scale * one_.key[k(c) + h];
        const double query = a_.scale * one_.query[q + h];
        grad_query[q + h].Add(
            s * key, (s_error + (a_.keys + 2) * kUnit * std::abs(s)) * std::abs(key));
        grad_key[k(c) + h].Add(
            s * query, (s_error + (queries + 2) * kUnit * std::abs(s)) * std::abs(query));
      }
    }
  }

 public:
  double WithRounding(const Bounded& one) const {
    if (a_.type != DataType::kFloat) return Rounded(a_.type, one.value, one.error);
    return one.error + kUnit * (std::abs(one.value) + one.error) + 0x1p-126;
  }

  void Check(const Results& found, Isa isa, const std::string& what) const {
    Check(found.result, result, isa, what + " result");
    Check(found.grad_query, grad_query, isa, what + " grad_query");
    Check(found.grad_key, grad_key, isa, what + " grad_key");
    Check(found.grad_value, grad_value, isa, what + " grad_value");
  }

 private:
  void Check(const Tensor& found, const std::vector<Bounded>& expected, Isa isa,
             const std::string& what) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const bool right = std::abs(found[i] - expected[i].value) <= WithRounding(expected[i]);
      EXPECT(right, "%s %s [%zu]: %.9g, expected %.9g within %.3g", Name(isa), what.c_str(),
             i, found[i], expected[i].value, WithRounding(expected[i]));
    }
  }

  // Whether FP16 numbers, and p and g beside them, become two numbers of bfloat16.
  static bool HasParts(DataType type, Isa isa) {
    return type == DataType::kHalf && (isa == Isa::kAmxBf16 || isa == Isa::kAmxFp16);
  }

  static double OperandError(DataType type, Isa isa) {
    if (HasParts(type, isa)) return 1.1 * 0x1p-16;
    const bool has_dot_products = isa == Isa::kAvx512Bf16 || isa == Isa::kAmxBf16 ||
                                  isa == Isa::kAmxFp16;
    return type == DataType::kBfloat16 && has_dot_products ? 1.1 * 0x1p-8 : 0;
  }

  const Case& one_;
  const Attention& a_;
  const double weight_error_, operand_error_;
};

inline std::string Describe(const Case& one, Mask mask) {
  const Attention& a = one.a;
  std::string text = "type " + std::to_string(static_cast<int>(a.type)) + " mask " +
                     std::to_string(static_cast<int>(mask)) +
                     (a.is_causal ? " causal" : "") + (a.dropout > 0 ? " dropout" : "") +
                     " [";
  for (std::int64_t size : {a.batch, a.queries, a.keys, a.heads, a.key_heads, a.key_size,
                            a.value_size}) {
    text += " " + std::to_string(size);
  }
  return text + " ]";
}

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_CPU_ATTENTION_ORACLE_H_
