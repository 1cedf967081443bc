// Tests of the product on a GPU by both routes, against double precision. The tolerance
// is derived in cuda/gemm_tolerance.h. Without a GPU it exits with 77, which ctest counts
// as skipped.
//
//   gemm_cuda_test [number of random cases, 2000 by default]

#include <thread>

#include "cuda/gemm_cases.cuh"
#include "cuda/gemm_fixture.cuh"

namespace keras_mp::test {
namespace {

// The element of a matrix at a row or column, and an index of the sum.
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

  // Each column of B has one special number; the others are ones or zeros.
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

  // Rounding to nearest even, and to inf from 65520 on, of sums that an FP16 accumulator
  // cannot hold.
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
  // Large numbers that cancel, and small ones between them: exact if the sum is in the
  // order of k, which cuBLASLt does not promise.
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

// The result of an FP16 accumulator, for 4096 random products, must be outside of the
// tolerance.
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
  if (IsRight(half_sum, sum, magnitude, 0, 4096, gemm, SumRounding::kTensorCore)) {
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

// B in FP32, of which every element is a 16-bit number: the result is that of B in 16
// bits.
void CheckFloatB(CudaRoute route) {
  for (const DataType input : {DataType::kHalf, DataType::kBfloat16}) {
    for (int bits = 0; bits < 8; ++bits) {
      Case c;
      c.m = 33;
      c.n = 40;
      c.k = bits & 4 ? 3000 : 50;  // with splits, and without
      c.batch = 3;
      c.extra = 3;
      c.input = input;
      c.transpose_b = bits & 1;
      c.share_b = bits & 2;
      Product product(c, Uniform(1), Uniform(2), 3);
      if (!RunIt(product, route, "B in FP32")) continue;
      const auto expected = product.Output();
      Gemm gemm = product.gemm();
      const std::int64_t rows = c.transpose_b ? c.n : c.k;
      const std::int64_t count = rows * gemm.ldb * (c.share_b ? 1 : c.batch);
      std::vector<std::uint16_t> b(static_cast<std::size_t>(count));
      CheckCuda(cudaMemcpy(b.data(), gemm.b, b.size() * 2, cudaMemcpyDeviceToHost), "B");
      std::vector<float> wide;
      for (const std::uint16_t x : b) wide.push_back(Widen(input, x));
      const DeviceBuffer float_b(wide.size() * 4);
      float_b.Put(wide.data(), wide.size() * 4, 0);
      gemm.b = float_b.data();
      gemm.rounds_b = true;
      CheckCuda(cudaMemset(gemm.c, 0xff, expected.size()), "clear C");
      const DeviceBuffer workspace(WorkspaceBytes(gemm, route));
      const Status status =
          GemmCuda(gemm, route, workspace.data(), workspace.bytes(), nullptr);
      CheckCuda(cudaDeviceSynchronize(), "B in FP32");
      if (!status.ok()) Fail(route, c.Name(), status.message);
      if (product.Output() != expected) Fail(route, c.Name(), "B in FP32: other bits");
      if (!workspace.GuardsAreIntact()) Fail(route, c.Name(), "writes beyond its memory");
    }
  }
}

__global__ void FillKernel(__half* x, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count;
       i += gridDim.x * 256ll) {
    const unsigned hash = static_cast<unsigned>(i % 1000003) * 2654435761u >> 20;
    x[i] = __float2half_rn(static_cast<float>(hash) * 0x1p-11f - 1.0f);
  }
}

// A and C of more than 2^31 elements. Their last rows are compared, whose indices do not
// fit into 32 bits.
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
    if (!IsRight(HalfToFloat(got[i]), sums[i], sums[got.size() + i], 0, g.k, g,
                 SumRounding::kTensorCore)) {
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
        {"B in FP32", [&] { CheckFloatB(route); }},
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
