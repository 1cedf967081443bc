// Tests attention_cpu.h against double precision, on every instruction set of this machine.

#include "keras_mp/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/fixture.h"
#include "cpu/attention_oracle.h"

// The sanitizers, which ask for these functions, are to return null where there is no
// memory, as the C library does.
#define VISIBLE extern "C" __attribute__((visibility("default")))
VISIBLE const char* __asan_default_options() { return "allocator_may_return_null=1"; }
VISIBLE const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace keras_mp {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 1, 1, 1},      {2, 7, 16, 2, 2, 17, 7},    {1, 16, 7, 4, 2, 16, 16},
    {2, 17, 17, 3, 1, 7, 33},   {1, 64, 64, 2, 2, 64, 64},  {1, 111, 111, 2, 1, 64, 17},
    {1, 1, 300, 2, 2, 16, 16},  {1, 300, 1, 1, 1, 16, 16},  {1, 217, 130, 2, 1, 20, 40},
    {1, 130, 217, 1, 1, 32, 8}, {1, 9, 20, 1, 1, 300, 270}, {1, 5, 6, 1, 1, 0, 3},
    {1, 5, 0, 1, 1, 3, 3},      {2, 0, 5, 1, 1, 3, 3},      {1, 5, 6, 2, 2, 3, 0},
};
constexpr DataType kAllTypes[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat};

void TestSizes() {
  std::mt19937 random(1);
  int count = 0;
  for (const Shape& shape : kShapes) {
    for (DataType type : kAllTypes) {
      for (Mask mask : {Mask::kNone, Mask::kKeys, Mask::kQueries, Mask::kPairs}) {
        // Each of them with each mask, as there is an odd number of types.
        const bool is_causal = ++count / 4 % 2 == 0;
        Case one(shape, type, is_causal, mask, random);
        // Of two masks with, of two without, in turns.
        if (count % 4 / 2 == count / 12 % 2) one.SetDropout(0.3f, random);
        for (Isa isa : SupportedIsas()) {
          const Oracle oracle(one, isa);
          Results found(one);
          found.Run(one, isa, 1 + random() % 3);
          oracle.Check(found, isa, Describe(one, mask));
        }
      }
    }
  }
}

// Far beyond 65,504 and far apart: one key takes all the attention.
void TestLargeScores() {
  std::mt19937 random(2);
  for (DataType type : kAllTypes) {
    for (float deviation : {30.0f, 3000.0f}) {
      const Case one({1, 40, 150, 1, 1, 64, 8}, type, false, Mask::kNone, random,
                     deviation);
      for (Isa isa : SupportedIsas()) {
        const Oracle oracle(one, isa);
        Results found(one);
        found.Run(one, isa, 1);
        oracle.Check(found, isa, "large scores");
      }
    }
  }
}

// The largest score comes last, or is hidden first.
void TestOrders(Isa isa) {
  std::mt19937 random(3);
  Case one({1, 3, 300, 1, 1, 1, 1}, DataType::kHalf, false, Mask::kKeys, random);
  for (std::int64_t c = 0; c < 300; ++c) {
    one.key.Set(c, 0.1f * static_cast<float>(c));
    one.mask[c] = c >= 140;
  }
  for (std::int64_t t = 0; t < 3; ++t) one.query.Set(t, static_cast<float>(t) - 1);
  const Oracle oracle(one, isa);
  Results found(one);
  found.Run(one, isa, 1);
  oracle.Check(found, isa, "orders");
}

void TestQueriesThatSeeNoKey(Isa isa) {
  std::mt19937 random(4);
  Case one({1, 2, 200, 1, 1, 2, 1}, DataType::kHalf, true, Mask::kKeys, random);
  std::fill(one.mask.begin(), one.mask.end(), 0);
  for (std::int64_t c = 0; c < 200; ++c) one.value.Set(c, c % 2 ? 1.0f : 2.0f);
  Results found(one);
  found.Run(one, isa, 1);
  for (std::int64_t t = 0; t < 2; ++t) {
    EXPECT(found.result[t] == 1.5, "%s: %g", Name(isa), found.result[t]);
    EXPECT(found.log_sum_exp[t] == -HUGE_VALF, "%s", Name(isa));
    EXPECT(found.grad_query[t] == 0, "%s", Name(isa));
  }
}

void TestSpecialValues(Isa isa) {
  for (float special : {kNan, HUGE_VALF}) {
    std::mt19937 random(5);
    Case one({1, 20, 20, 1, 1, 16, 16}, DataType::kHalf, true, Mask::kNone, random);
    one.query.Set(7 * 16 + 3, special);
    Results found(one);
    found.Run(one, isa, 1);
    for (std::int64_t t = 0; t < 20; ++t) {
      EXPECT(std::isnan(found.result[t * 16]) == (t == 7), "%s, query %ld of %g",
             Name(isa), t, special);
    }
    // A key that is hidden from all but the last query.
    one.query.Set(7 * 16 + 3, 0);
    one.key.Set(19 * 16 + 3, kNan);
    found.Run(one, isa, 1);
    for (std::int64_t t = 0; t < 20; ++t) {
      EXPECT(std::isnan(found.result[t * 16]) == (t == 19), "%s, key, query %ld",
             Name(isa), t);
    }
  }
}

// 8 threads are more than the heads, so that the gradients are computed by the other route.
void TestThreadsDoNotChangeBits(Isa isa) {
  std::mt19937 random(6);
  for (DataType type : kTypes) {
    Case one({2, 301, 261, 4, 2, 40, 24}, type, true, Mask::kPairs, random);
    one.SetDropout(0.1f, random);
    Results alone(one), two(one), eight(one);
    alone.Run(one, isa, 1);
    two.Run(one, isa, 2);
    eight.Run(one, isa, 8);
    EXPECT(alone == two && alone == eight, "%s", Name(isa));
  }
}

// Equal scores and the identity as values: the result is d / keys.
void TestDropsByThePosition(Isa isa) {
  std::mt19937 random(7);
  constexpr std::int64_t kKeys = 200;
  Case one({2, 3, kKeys, 4, 2, 1, kKeys}, DataType::kFloat, false, Mask::kNone, random, 0);
  one.SetDropout(0.5f, random);
  for (std::int64_t i = 0; i < one.value.size(); ++i) {
    one.value.Set(i, i / (2 * kKeys) % kKeys == i % kKeys);
  }
  Results found(one);
  found.Run(one, isa, 1);
  for (std::int64_t i = 0; i < one.grad.size(); ++i) {
    const std::int64_t c = i % kKeys, n = i / kKeys % 4, t = i / kKeys / 4 % 3;
    const bool keeps = DropoutBits(one.a, i / kKeys / 12, n, t, c) >= 0x80000000u;
    EXPECT((found.result[i] > 0) == keeps, "%s [%ld]", Name(isa), i);
  }
}

// Neither a dropout of 0 nor its seed changes a bit, and another seed drops others.
void TestSeeds(Isa isa) {
  std::mt19937 random(8);
  Case one({1, 20, 130, 2, 1, 16, 16}, DataType::kHalf, true, Mask::kKeys, random);
  Results without(one), with_seed(one), dropped(one), other(one);
  without.Run(one, isa, 1);
  one.SetDropout(0, random);
  with_seed.Run(one, isa, 1);
  EXPECT(without == with_seed, "%s", Name(isa));
  one.SetDropout(0.5f, random);
  dropped.Run(one, isa, 1);
  one.a.seed[1] += 1;
  other.Run(one, isa, 1);
  EXPECT(!(dropped == without) && !(dropped == other), "%s", Name(isa));
}

void TestNoMemory() {
  Attention a;
  a.batch = a.queries = a.keys = a.heads = a.key_heads = a.value_size = 1;
  a.key_size = std::int64_t{1} << 48;
  EXPECT(AttentionCpu(a, {}).code == StatusCode::kOutOfMemory, "forward");
  EXPECT(AttentionGradientCpu(a, {}).code == StatusCode::kOutOfMemory, "backward");
}

void TestErrors() {
  Attention a;
  EXPECT(AttentionCpu(a, {}).ok(), "nothing to do");
  EXPECT(AttentionGradientCpu(a, {}).ok(), "nothing to do");
  a.heads = 3;
  EXPECT(AttentionCpu(a, {}).code == StatusCode::kInvalidArgument, "no heads of keys");
  a.key_heads = 2;
  EXPECT(AttentionCpu(a, {}).code == StatusCode::kInvalidArgument, "no multiple");
  a.key_heads = 3;
  a.keys = -1;
  EXPECT(AttentionGradientCpu(a, {}).code == StatusCode::kInvalidArgument, "negative");
  a.keys = 0;
  for (float dropout : {-0.1f, 1.0f, kNan}) {
    a.dropout = dropout;
    EXPECT(AttentionCpu(a, {}).code == StatusCode::kInvalidArgument, "%g", dropout);
  }
  a.dropout = 0;
  const std::uint8_t mask = 1;
  a.mask = &mask;
  a.mask_strides[3] = 2;
  EXPECT(AttentionCpu(a, {}).code == StatusCode::kInvalidArgument, "stride");
}

}  // namespace
}  // namespace keras_mp

int main() {
  using namespace keras_mp;
  TestErrors();
  TestNoMemory();
  TestSizes();
  TestLargeScores();
  for (Isa isa : SupportedIsas()) {
    TestOrders(isa);
    TestQueriesThatSeeNoKey(isa);
    TestSpecialValues(isa);
    TestThreadsDoNotChangeBits(isa);
    TestDropsByThePosition(isa);
    TestSeeds(isa);
  }
  return Report();
}
