// Runs the product on a GPU by both routes and compares it with double precision. The
// tolerance and its derivation are in cuda/gemm_tolerance.h. Ends with 77, which ctest
// takes for a skip, where there is no GPU.
//
//   gemm_cuda_test [random cases, 2000 where not given]

#include <thread>

#include "cuda/gemm_fixture.cuh"

namespace keras_mp::test {
namespace {

int failures = 0;
int checked = 0;
int refused = 0;

void Fail(CudaRoute route, const std::string& name, const std::string& what) {
  ++failures;
  if (failures <= 40) {
    std::printf("FAILED (%s): %s: %s\n", Name(route), name.c_str(), what.c_str());
  }
}

Fill Uniform(std::uint64_t seed) {
  auto random = std::make_shared<Random>(seed);
  return [random](std::int64_t, std::int64_t, std::int64_t) { return random->Uniform(); };
}

// Runs a product. cuBLASLt may have no algorithm for it, which callers answer with the
// own route; how often is printed at the end.
bool RunIt(Product& product, CudaRoute route, const std::string& name) {
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

void Check(CudaRoute route, const Case& c, const Fill& a, const Fill& b) {
  Product product(c, a, b, 3);
  if (!RunIt(product, route, c.Name())) return;
  const std::string wrong = product.Compare();
  if (!wrong.empty()) Fail(route, c.Name(), wrong);
}

void Check(CudaRoute route, const Case& c) { Check(route, c, Uniform(1), Uniform(2)); }

void CheckSizes(CudaRoute route) {
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
      c.extra = 3;  // rows of 992, aligned to 8 bytes
      Check(route, c);
      c.m = 17;  // few rows or columns: other tiles, and splits
      Check(route, c);
      std::swap(c.m, c.n);
      Check(route, c);
    }
  }
}

void CheckAlignments(CudaRoute route) {
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

void CheckEpilogues(CudaRoute route) {
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

void CheckBatches(CudaRoute route) {
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
  Case many;  // more than a grid has in z
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

// A value at each place of A, by row and column of op(A).
using Value = std::function<float(std::int64_t row, std::int64_t k)>;

void CheckValues(CudaRoute route, const char* name, const Case& c, const Value& a,
                 const Value& b, const std::vector<double>& expected) {
  Product product(
      c, [&](std::int64_t, std::int64_t row, std::int64_t k) { return a(row, k); },
      [&](std::int64_t, std::int64_t k, std::int64_t column) { return b(column, k); }, 1);
  if (!RunIt(product, route, name)) return;
  const auto all = product.Output();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double got = product.OutputAt(all, static_cast<std::int64_t>(i));
    const bool equal = std::isnan(expected[i]) ? std::isnan(got) : got == expected[i];
    if (!equal) {
      Fail(route, name,
           std::to_string(i) + ": " + std::to_string(got) + " is not " +
               std::to_string(expected[i]));
    }
  }
}

void CheckSpecialValues(CudaRoute route) {
  const float inf = HUGE_VALF;
  const auto one = [](std::int64_t, std::int64_t) { return 1.0f; };
  Case c;
  c.m = 1;
  c.n = 8;
  c.k = 16;

  // A column of B has one special number, the others are ones.
  const float special[8] = {inf, -inf, NAN, 0x1p-24f, 65504, -65504, 0, 1};
  const auto b = [&](std::int64_t column, std::int64_t k) {
    if (k == 3) return special[column];
    return column == 0 || column > 3 ? 1.0f : 0.0f;
  };
  CheckValues(route, "inf, NaN, subnormal", c, one, b,
              {inf, -inf, NAN, 0x1p-24, 65504, -65504, 15, 16});
  c.activation = Activation::kRelu;
  CheckValues(route, "ReLU of inf and NaN", c, one, b,
              {inf, 0, NAN, 0x1p-24, 65504, 0, 15, 16});
  c.activation = Activation::kTanh;
  CheckValues(route, "tanh of inf and NaN", c, one, b, {1, -1, NAN});
  c.activation = Activation::kSigmoid;
  CheckValues(route, "sigmoid of inf and NaN", c, one, b, {1, 0, NAN});
  c.activation = Activation::kNone;
  CheckValues(route, "inf - inf", c, one,
              [&](std::int64_t, std::int64_t k) { return k == 0   ? inf
                                                         : k == 1 ? -inf
                                                                  : 0.0f; },
              {NAN});

  // Rounding to nearest even, and to inf from 65520 on: sums no FP16 accumulator holds.
  const float beyond[8] = {15, 16, -15, -16, 2048, 0, 0, 0};
  c.k = 2;
  CheckValues(route, "overflow", c, one,
              [&](std::int64_t column, std::int64_t k) {
                return k == 0 ? std::copysign(65504.0f, beyond[column]) : beyond[column];
              },
              {65504, inf, -65504, -inf, inf});
  const float ties[8] = {1, 3, -1, -3, 1.001f, 0.999f, 0, 2};
  CheckValues(route, "ties go to even", c, one,
              [&](std::int64_t column, std::int64_t k) {
                return k == 0 ? std::copysign(2048.0f, ties[column]) : ties[column];
              },
              {2048, 2052, -2048, -2052, 2050, 2048, 2048, 2050});

  // 4096 ones: an FP16 accumulator stops at 2048.
  c.k = 4096;
  CheckValues(route, "4096 ones", c, one, one, std::vector<double>(8, 4096));
  // Large numbers that cancel, with a small rest in between: exact if k is summed in its
  // order, which cuBLASLt does not promise.
  if (route == CudaRoute::kOwn) {
    CheckValues(route, "cancellation", c, one,
                [](std::int64_t, std::int64_t k) {
                  return k % 4 == 0 ? 30000.0f : k % 4 == 2 ? -30000.0f : 0.25f;
                },
                std::vector<double>(8, 512));
  }

  Case empty;  // k = 0: activation(bias), whatever alpha is
  empty.m = 3;
  empty.n = 8;
  empty.k = 0;
  empty.alpha = true;
  empty.alpha_value = inf;
  CheckValues(route, "k = 0", empty, one, one, std::vector<double>(24, 0));
  empty.bias = true;
  empty.activation = Activation::kGelu;
  Case finite = empty;
  finite.alpha_value = 1;
  Check(route, finite);
}

// K = 4096 of random numbers: an FP16 accumulator, tried beside it, is far outside of the
// tolerance. A test that it would pass tests nothing.
void CheckHalfAccumulatorWouldFail() {
  Random random(5);
  double sum = 0;
  double magnitude = 0;
  float half_sum = 0;
  for (int k = 0; k < 4096; ++k) {
    const float a = HalfToFloat(FloatToHalf(random.Uniform() + 1));
    const float b = HalfToFloat(FloatToHalf(random.Uniform() + 1));
    sum += static_cast<double>(a) * b;
    magnitude += std::abs(static_cast<double>(a) * b);
    half_sum = HalfToFloat(FloatToHalf(half_sum + a * b));
  }
  Gemm gemm;
  if (IsRight(half_sum, sum, magnitude, 0, 4096, gemm)) {
    Fail(CudaRoute::kOwn, "half accumulator", "the tolerance lets it pass");
  }
}

void CheckDeterminism(CudaRoute route) {
  for (const std::int64_t k : {64, 989, 20000}) {
    Case c;
    c.m = 70;
    c.n = 90;
    c.k = k;
    Product product(c, Uniform(1), Uniform(2), 3);
    if (!RunIt(product, route, "determinism")) continue;
    const auto first = product.Output();
    for (int i = 0; i < 10; ++i) {
      if (product.Run(route).ok() && product.Output() == first) continue;
      Fail(route, "determinism", "k=" + std::to_string(k) + ": other bits");
    }
  }
}

void CheckThreads(CudaRoute route) {
  constexpr int kThreads = 4;
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&wrong, route, t] {
      cudaStream_t stream;
      CheckCuda(cudaStreamCreate(&stream), "stream");
      for (int i = 0; i < 20; ++i) {
        Case c;
        c.m = 30 + 11 * t;
        c.n = 100 + i;
        c.k = 500;
        Product product(c, Uniform(1), Uniform(2), 3);
        CheckCuda(cudaDeviceSynchronize(), "data");
        const Status status = product.Run(route, stream);
        if (!status.ok()) {
          if (status.code != StatusCode::kUnimplemented) {
            wrong[static_cast<std::size_t>(t)] = status.message;
          }
          continue;
        }
        const std::string result = product.Compare();
        if (!result.empty()) wrong[static_cast<std::size_t>(t)] = result;
      }
      cudaStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) {
    if (!text.empty()) Fail(route, "threads", text);
  }
}

void CheckErrors(CudaRoute route) {
  Case c;
  c.m = c.n = c.k = 8;
  Product product(c, Uniform(1), Uniform(2), 3);
  Gemm gemm = product.gemm();
  gemm.lda = 7;
  if (GemmCuda(gemm, route, nullptr, 0, nullptr).code != StatusCode::kInvalidArgument) {
    Fail(route, "errors", "a row longer than lda was accepted");
  }
  gemm = product.gemm();
  gemm.m = std::int64_t{1} << 40;
  gemm.batch = 0;
  gemm.stride_a = gemm.stride_b = gemm.stride_c = 0;
  if (!GemmCuda(gemm, route, nullptr, 0, nullptr).ok()) {
    Fail(route, "errors", "an empty batch was refused");
  }
}

void CheckRandomShapes(CudaRoute route, int count) {
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

__global__ void FillKernel(__half* x, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count;
       i += gridDim.x * 256ll) {
    const unsigned hash = static_cast<unsigned>(i % 1000003) * 2654435761u >> 20;
    x[i] = __float2half_rn(static_cast<float>(hash) * 0x1p-11f - 1.0f);
  }
}

// A and C of more than 2^31 elements. Its last rows, where 32 bits would have wrapped,
// are compared.
void CheckBeyond31Bits(CudaRoute route) {
  Gemm g;
  g.m = 70000;
  g.n = 32768;
  g.k = 64;
  g.lda = g.ldb = g.ldc = g.n;  // so that A spans as much as C
  const std::size_t bytes = static_cast<std::size_t>(g.m * g.n) * 2;
  std::size_t free = 0;
  std::size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < 2 * bytes + (std::size_t{2} << 30)) {
    std::printf("%s: too little memory for matrices beyond 2^31\n", Name(route));
    return;
  }
  const DeviceBuffer a(bytes);
  const DeviceBuffer b(static_cast<std::size_t>(g.k * g.n) * 2);
  const DeviceBuffer c(bytes);
  g.a = a.data();
  g.b = b.data();
  g.c = c.data();
  FillKernel<<<4096, 256>>>(reinterpret_cast<__half*>(a.data()), g.m * g.lda);
  FillKernel<<<4096, 256>>>(reinterpret_cast<__half*>(b.data()), g.k * g.n);
  CheckCuda(cudaGetLastError(), "fill");
  CheckCuda(cudaDeviceSynchronize(), "fill");
  const DeviceBuffer workspace(WorkspaceBytes(g, route));
  const Status status = GemmCuda(g, route, workspace.data(), workspace.bytes(), nullptr);
  CheckCuda(cudaDeviceSynchronize(), "beyond 2^31");
  if (!status.ok()) {
    Fail(route, "beyond 2^31", status.message);
    return;
  }
  Gemm last = g;
  last.m = 16;
  last.a = a.data() + static_cast<std::size_t>((g.m - last.m) * g.lda) * 2;
  const std::vector<double> sums = Reference(last);
  std::vector<std::uint16_t> got(static_cast<std::size_t>(last.m * g.n));
  CheckCuda(cudaMemcpy(got.data(),
                       c.data() + static_cast<std::size_t>((g.m - last.m) * g.ldc) * 2,
                       got.size() * 2, cudaMemcpyDeviceToHost),
            "copy out");
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!IsRight(HalfToFloat(got[i]), sums[i], sums[got.size() + i], 0, g.k, g)) {
      Fail(route, "beyond 2^31", std::to_string(i));
      return;
    }
  }
}

int Main(int random_cases) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU\n");
    return 77;
  }
  CheckHalfAccumulatorWouldFail();
  for (const CudaRoute route : {CudaRoute::kOwn, CudaRoute::kCublasLt}) {
    const char* why = "";
    if (!IsAvailable(route, &why)) {
      std::printf("route %s is not available: %s\n", Name(route), why);
      if (route == CudaRoute::kOwn) ++failures;
      continue;
    }
    checked = refused = 0;
    const std::pair<const char*, std::function<void()>> parts[] = {
        {"special values", [&] { CheckSpecialValues(route); }},
        {"sizes", [&] { CheckSizes(route); }},
        {"alignments", [&] { CheckAlignments(route); }},
        {"epilogues", [&] { CheckEpilogues(route); }},
        {"batches", [&] { CheckBatches(route); }},
        {"determinism", [&] { CheckDeterminism(route); }},
        {"threads", [&] { CheckThreads(route); }},
        {"errors", [&] { CheckErrors(route); }},
        {"random shapes", [&] { CheckRandomShapes(route, random_cases); }},
        {"beyond 2^31", [&] { CheckBeyond31Bits(route); }},
    };
    for (const auto& [name, check] : parts) {
      const int before = failures;
      check();
      std::printf("%s, %s: %s\n", Name(route), name,
                  failures == before ? "right" : "WRONG");
      std::fflush(stdout);
    }
    std::printf("%s: %d products, %d refused\n", Name(route), checked, refused);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keras_mp::test

int main(int argc, char** argv) {
  return keras_mp::test::Main(argc > 1 ? std::atoi(argv[1]) : 2000);
}
