// The products of the tests on a GPU: sizes, alignments, epilogues, batches and random
// cases, each compared with double precision.

#ifndef KERAS_MP_TESTS_CUDA_GEMM_CASES_CUH_
#define KERAS_MP_TESTS_CUDA_GEMM_CASES_CUH_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "cuda/gemm_fixture.cuh"

namespace keras_mp::test {

inline int failures = 0;
inline int checked = 0;
inline int refused = 0;  // by cuBLASLt, which may have no algorithm for a product

inline void Fail(CudaRoute route, const std::string& name, const std::string& what) {
  ++failures;
  if (failures <= 40) {
    std::printf("FAILED (%s): %s: %s\n", Name(route), name.c_str(), what.c_str());
  }
}

inline Fill Uniform(std::uint64_t seed) {
  auto random = std::make_shared<Random>(seed);
  return [random](std::int64_t, std::int64_t, std::int64_t) { return random->Uniform(); };
}

// Runs a product, and returns whether there is a result to check.
inline bool RunIt(Product& product, CudaRoute route, const std::string& name) {
  const Status status = product.Run(route);
  ++checked;
  if (status.ok()) return true;
  if (route == CudaRoute::kCublasLt && status.code == StatusCode::kUnimplemented) {
    ++refused;
  } else {
    Fail(route, name, status.message);
  }
  return false;
}

inline void Check(CudaRoute route, const Case& c, const Fill& a, const Fill& b) {
  Product product(c, a, b, 3);
  if (!RunIt(product, route, c.Name())) return;
  const std::string wrong = product.Compare();
  if (!wrong.empty()) Fail(route, c.Name(), wrong);
}

inline void Check(CudaRoute route, const Case& c) {
  Check(route, c, Uniform(1), Uniform(2));
}

inline void CheckSizes(CudaRoute route) {
  const std::int64_t sizes[] = {0, 1, 7, 16, 17, 64, 111, 217};
  int i = 0;
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) {
        for (int transpose = 0; transpose < 4; ++transpose) {
          Case c;
          c.m = m;
          c.n = n;
          c.k = k;
          c.transpose_a = transpose & 1;
          c.transpose_b = transpose & 2;
          c.float_output = ++i % 2;
          c.input = i % 3 == 0 ? DataType::kBfloat16 : DataType::kHalf;
          c.bias = i % 5 == 0;
          Check(route, c);
        }
      }
    }
  }
  for (int transpose = 0; transpose < 4; ++transpose) {
    for (const std::int64_t k : {1, 989, 4096}) {
      Case c;
      c.m = c.n = 989;
      c.k = k;
      c.transpose_a = transpose & 1;
      c.transpose_b = transpose & 2;
      Check(route, c);
      c.extra = 3;  // rows of 992 elements are aligned to 8 bytes
      Check(route, c);
      c.m = 17;  // few rows or columns: other tiles, and splits
      Check(route, c);
      std::swap(c.m, c.n);
      Check(route, c);
    }
  }
}

inline void CheckAlignments(CudaRoute route) {
  for (const DataType input : {DataType::kHalf, DataType::kBfloat16}) {
    for (int transpose = 0; transpose < 4; ++transpose) {
      for (const std::int64_t offset : {0, 1, 2, 3, 4, 8}) {
        for (const std::int64_t extra : {0, 1, 2, 4, 8}) {
          Case c;
          c.input = input;
          c.m = 144;
          c.n = 272;
          c.k = 136;
          c.transpose_a = transpose & 1;
          c.transpose_b = transpose & 2;
          c.offset = offset;
          c.extra = extra;
          c.bias = offset % 2;
          Check(route, c);
        }
      }
    }
  }
}

inline void CheckEpilogues(CudaRoute route) {
  for (const Activation activation :
       {Activation::kNone, Activation::kRelu, Activation::kTanh, Activation::kSigmoid,
        Activation::kGelu}) {
    for (int bits = 0; bits < 32; ++bits) {
      Case c;
      c.m = 49;
      c.n = 71;
      c.k = bits & 16 ? 3000 : 130;  // with splits, and without
      c.bias = bits & 1;
      c.float_bias = bits & 2;
      c.float_output = bits & 4;
      c.alpha = bits & 8;
      c.activation = activation;
      for (const DataType input : {DataType::kHalf, DataType::kBfloat16}) {
        c.input = input;
        Check(route, c);
      }
      c.no_workspace = true;
      if (route == CudaRoute::kOwn) Check(route, c);
    }
  }
}

inline void CheckBatches(CudaRoute route) {
  Case c;
  c.m = 33;
  c.n = 40;
  c.k = 50;
  for (const std::int64_t batch : {0, 2, 5}) {
    for (int bits = 0; bits < 16; ++bits) {
      c.batch = batch;
      c.share_a = bits & 1;
      c.share_b = bits & 2;
      c.transpose_a = bits & 4;
      c.transpose_b = bits & 8;
      Check(route, c);
    }
  }
  Case many;  // more products than a grid has blocks in z
  many.m = 3;
  many.n = 5;
  many.k = 4;
  many.batch = 70000;
  many.activation = Activation::kRelu;
  many.bias = true;
  Check(route, many);
  Case split;
  split.m = 8;
  split.n = 24;
  split.k = 5000;
  split.batch = 3;
  Check(route, split);
}

inline void CheckRandomShapes(CudaRoute route, int count) {
  Random random(2024);
  for (int i = 0; i < count; ++i) {
    const auto size = [&] {
      return random.Below(4) == 0 ? 1 + random.Below(1000) : 1 + random.Below(130);
    };
    Case c;
    c.m = size();
    c.n = size();
    c.k = random.Below(10) == 0 ? random.Below(6000) : size();
    c.transpose_a = random.Below(2);
    c.transpose_b = random.Below(2);
    c.extra = random.Below(2) * random.Below(9);
    c.offset = random.Below(2) * random.Below(9);
    c.batch = random.Below(5) == 0 ? 1 + random.Below(4) : 1;
    c.share_b = random.Below(2);
    c.input = random.Below(3) == 0 ? DataType::kBfloat16 : DataType::kHalf;
    c.float_output = random.Below(2);
    c.bias = random.Below(2);
    c.float_bias = random.Below(2);
    c.alpha = random.Below(2);
    c.activation = static_cast<Activation>(random.Below(5));
    Check(route, c);
  }
}

}  // namespace keras_mp::test

#endif  // KERAS_MP_TESTS_CUDA_GEMM_CASES_CUH_
