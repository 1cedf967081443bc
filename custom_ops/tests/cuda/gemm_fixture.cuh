// A product for tests on a device: makes its data, runs it, and compares the result with
// double precision.

#ifndef KERAS_MP_TESTS_CUDA_GEMM_FIXTURE_CUH_
#define KERAS_MP_TESTS_CUDA_GEMM_FIXTURE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gemm_tolerance.h"
#include "common/half.h"
#include "keras_mp/gemm_cuda.h"

namespace keras_mp::test {

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);  // after an error in a kernel every later call fails
}

// Device memory between two guards. All bytes are initialized with 0xff, which is NaN in
// every type: a read beyond a matrix gives NaN, and a write there changes a guard.
class DeviceBuffer {
 public:
  static constexpr std::size_t kGuard = 4096;

  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    CheckCuda(cudaMalloc(&memory_, bytes + 2 * kGuard), "cudaMalloc");
    CheckCuda(cudaMemset(memory_, 0xff, bytes + 2 * kGuard), "cudaMemset");
  }
  ~DeviceBuffer() { cudaFree(memory_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  char* data() const { return static_cast<char*>(memory_) + kGuard; }
  std::size_t bytes() const { return bytes_; }
  void Put(const void* from, std::size_t bytes, std::size_t at) const {
    CheckCuda(cudaMemcpy(data() + at, from, bytes, cudaMemcpyHostToDevice), "copy in");
  }
  std::vector<unsigned char> Get() const {
    std::vector<unsigned char> all(bytes_);
    CheckCuda(cudaMemcpy(all.data(), data(), bytes_, cudaMemcpyDeviceToHost), "copy out");
    return all;
  }
  bool GuardsAreIntact() const {
    std::vector<unsigned char> guard(kGuard);
    for (const char* at : {data() - kGuard, data() + bytes_}) {
      CheckCuda(cudaMemcpy(guard.data(), at, kGuard, cudaMemcpyDeviceToHost), "guards");
      for (const unsigned char byte : guard) {
        if (byte != 0xff) return false;
      }
    }
    return true;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

struct Case {
  std::int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  std::int64_t extra = 0;   // elements from the end of a row to the next row
  std::int64_t offset = 0;  // elements after an aligned address
  std::int64_t batch = 1;
  bool share_a = false, share_b = false;
  DataType input = DataType::kHalf;
  bool float_output = false;
  bool bias = false, float_bias = false;
  bool alpha = false;
  float alpha_value = 0.37f;
  Activation activation = Activation::kNone;
  bool no_workspace = false;

  std::string Name() const {
    char text[200];
    std::snprintf(text, sizeof text,
                  "m=%lld n=%lld k=%lld ta=%d tb=%d extra=%lld offset=%lld batch=%lld "
                  "%s out32=%d bias=%d/%d alpha=%d act=%d",
                  static_cast<long long>(m), static_cast<long long>(n),
                  static_cast<long long>(k), transpose_a, transpose_b,
                  static_cast<long long>(extra), static_cast<long long>(offset),
                  static_cast<long long>(batch),
                  input == DataType::kHalf ? "half" : "bfloat16", float_output, bias,
                  float_bias, alpha, static_cast<int>(activation));
    return text;
  }
};

// A generator of random numbers that are the same on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  std::int64_t Below(std::int64_t end) { return static_cast<std::int64_t>(Next()) % end; }
  float Uniform() { return static_cast<float>(Next()) * 0x1p-30f - 1.0f; }  // [-1, 1)

 private:
  std::uint64_t state_;
};

inline float Widen(DataType type, std::uint16_t bits) {
  return type == DataType::kHalf ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}
inline std::uint16_t Round(DataType type, float x) {
  return type == DataType::kHalf ? FloatToHalf(x) : FloatToBfloat16(x);
}

// Computes A * B, then |A| * |B|, in double precision, [batch][m][n] each.
template <class T>
__global__ void ReferenceKernel(Gemm g, const T* a, const T* b, double* sums) {
  const long long count = g.batch * g.m * g.n;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count;
       i += gridDim.x * 256ll) {
    const long long column = i % g.n;
    const long long row = i / g.n % g.m;
    const long long z = i / (g.m * g.n);
    double sum = 0;
    double magnitude = 0;
    for (long long k = 0; k < g.k; ++k) {
      const double x = static_cast<float>(
          a[z * g.stride_a + (g.transpose_a ? k * g.lda + row : row * g.lda + k)]);
      const double y = static_cast<float>(
          b[z * g.stride_b + (g.transpose_b ? column * g.ldb + k : k * g.ldb + column)]);
      sum += x * y;
      magnitude += fabs(x * y);
    }
    sums[i] = sum;
    sums[count + i] = magnitude;
  }
}

inline std::vector<double> Reference(const Gemm& g) {
  const std::size_t count = static_cast<std::size_t>(g.batch * g.m * g.n);
  std::vector<double> sums(2 * count);
  if (count == 0) return sums;
  const DeviceBuffer on_device(sums.size() * sizeof(double));
  double* to = reinterpret_cast<double*>(on_device.data());
  const unsigned blocks =
      static_cast<unsigned>(std::min<std::size_t>((count + 255) / 256, 65535));
  if (g.input == DataType::kHalf) {
    ReferenceKernel<<<blocks, 256>>>(g, static_cast<const __half*>(g.a),
                                     static_cast<const __half*>(g.b), to);
  } else {
    ReferenceKernel<<<blocks, 256>>>(g, static_cast<const __nv_bfloat16*>(g.a),
                                     static_cast<const __nv_bfloat16*>(g.b), to);
  }
  CheckCuda(cudaGetLastError(), "reference");
  CheckCuda(cudaMemcpy(sums.data(), to, on_device.bytes(), cudaMemcpyDeviceToHost),
            "reference");
  return sums;
}

// The element at (z, row, column) of A or B as stored.
using Fill = std::function<float(std::int64_t z, std::int64_t row, std::int64_t column)>;

// A case on the device, ready to run.
class Product {
 public:
  Product(const Case& c, const Fill& fill_a, const Fill& fill_b, std::uint64_t seed)
      : case_(c), a_(nullptr), b_(nullptr) {
    Gemm& g = gemm_;
    g.m = c.m;
    g.n = c.n;
    g.k = c.k;
    g.batch = c.batch;
    g.transpose_a = c.transpose_a;
    g.transpose_b = c.transpose_b;
    g.input = c.input;
    g.output = c.float_output ? DataType::kFloat : c.input;
    g.bias_type = c.float_bias ? DataType::kFloat : c.input;
    g.activation = c.activation;
    const std::int64_t rows_a = c.transpose_a ? c.k : c.m;
    const std::int64_t rows_b = c.transpose_b ? c.n : c.k;
    g.lda = (c.transpose_a ? c.m : c.k) + c.extra;
    g.ldb = (c.transpose_b ? c.k : c.n) + c.extra;
    g.ldc = c.n + c.extra;
    g.stride_a = c.share_a ? 0 : rows_a * g.lda;
    g.stride_b = c.share_b ? 0 : rows_b * g.ldb;
    g.stride_c = c.m * g.ldc;
    a_ = Matrix(fill_a, rows_a, g.lda, c.share_a ? 1 : c.batch);
    b_ = Matrix(fill_b, rows_b, g.ldb, c.share_b ? 1 : c.batch);
    g.a = a_->data() + c.offset * 2;
    g.b = b_->data() + c.offset * 2;
    output_bytes_ = c.float_output ? 4 : 2;
    count_c_ = c.batch * g.stride_c;
    c_ = Buffer((count_c_ + c.offset) * output_bytes_);
    g.c = c_->data() + c.offset * output_bytes_;

    Random random(seed);
    bias_.assign(static_cast<std::size_t>(c.n), 0.0f);
    if (c.bias) {
      bias_memory_ = Buffer((c.n + c.offset) * (c.float_bias ? 4 : 2));
      std::vector<std::uint16_t> bits;
      for (float& x : bias_) {
        bits.push_back(Round(c.input, random.Uniform()));
        x = c.float_bias ? random.Uniform() : Widen(c.input, bits.back());
      }
      const std::size_t at = static_cast<std::size_t>(c.offset) * (c.float_bias ? 4 : 2);
      if (c.float_bias) {
        bias_memory_->Put(bias_.data(), bias_.size() * 4, at);
      } else {
        bias_memory_->Put(bits.data(), bits.size() * 2, at);
      }
      g.bias = bias_memory_->data() + at;
    }
    if (c.alpha) {
      alpha_ = Buffer(4);
      alpha_->Put(&c.alpha_value, 4, 0);
      g.alpha = reinterpret_cast<const float*>(alpha_->data());
    }
  }

  const Gemm& gemm() const { return gemm_; }

  Status Run(CudaRoute route, cudaStream_t stream = nullptr) {
    CheckCuda(cudaMemset(c_->data(), 0xff, c_->bytes()), "clear C");
    const std::size_t bytes = case_.no_workspace ? 0 : WorkspaceBytes(gemm_, route);
    const DeviceBuffer workspace(bytes);
    const Status status =
        GemmCuda(gemm_, route, bytes > 0 ? workspace.data() : nullptr, bytes, stream);
    CheckCuda(cudaStreamSynchronize(stream), "the product");
    workspace_intact_ = workspace.GuardsAreIntact();
    return status;
  }

  std::vector<unsigned char> Output() const { return c_->Get(); }

  double OutputAt(const std::vector<unsigned char>& all, std::int64_t i) const {
    const unsigned char* at = all.data() + (case_.offset + i) * output_bytes_;
    if (case_.float_output) {
      float x;
      std::memcpy(&x, at, 4);
      return x;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    return Widen(case_.input, bits);
  }

  // Returns an empty text if the output is right, else a description of the error.
  std::string Compare() const {
    const Gemm& g = gemm_;
    const std::vector<double> sums = Reference(g);
    const std::vector<unsigned char> all = Output();
    const double alpha = case_.alpha && g.k > 0 ? case_.alpha_value : 1.0;
    if (!c_->GuardsAreIntact() || !workspace_intact_) return "writes beyond its memory";
    for (std::int64_t z = 0; z < g.batch; ++z) {
      for (std::int64_t row = 0; row < g.m; ++row) {
        for (std::int64_t column = 0; column < g.ldc; ++column) {
          const std::int64_t at = z * g.stride_c + row * g.ldc + column;
          if (column >= g.n) {
            if (!std::isnan(OutputAt(all, at))) return "writes between rows";
            continue;
          }
          const std::size_t i =
              static_cast<std::size_t>((z * g.m + row) * g.n + column);
          const double got = OutputAt(all, at);
          const double product = alpha * sums[i];
          const double magnitude = std::abs(alpha) * sums[sums.size() / 2 + i];
          const double bias = bias_[static_cast<std::size_t>(column)];
          if (!IsRight(got, product, magnitude, bias, g.k, g, SumRounding::kTensorCore)) {
            char text[160];
            std::snprintf(text, sizeof text,
                          "[%lld, %lld, %lld] is %.9g; alpha A B = %.12g, bias %.9g",
                          static_cast<long long>(z), static_cast<long long>(row),
                          static_cast<long long>(column), got, product, bias);
            return text;
          }
        }
      }
    }
    return "";
  }

 private:
  using Owned = std::unique_ptr<DeviceBuffer>;

  static Owned Buffer(std::int64_t bytes) {
    return std::make_unique<DeviceBuffer>(static_cast<std::size_t>(bytes));
  }

  // Elements between rows and before the matrix stay NaN.
  Owned Matrix(const Fill& fill, std::int64_t rows, std::int64_t ld, std::int64_t count) {
    std::vector<std::uint16_t> bits(
        static_cast<std::size_t>(case_.offset + count * rows * ld), 0xffff);
    for (std::int64_t z = 0; z < count; ++z) {
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < ld - case_.extra; ++column) {
          bits[static_cast<std::size_t>(case_.offset + (z * rows + row) * ld + column)] =
              Round(case_.input, fill(z, row, column));
        }
      }
    }
    Owned buffer = Buffer(static_cast<std::int64_t>(bits.size()) * 2);
    buffer->Put(bits.data(), bits.size() * 2, 0);
    return buffer;
  }

  Case case_;
  Gemm gemm_;
  Owned a_, b_, c_, bias_memory_, alpha_;
  std::vector<float> bias_;
  std::int64_t output_bytes_ = 0;
  std::int64_t count_c_ = 0;
  bool workspace_intact_ = true;
};

}  // namespace keras_mp::test

#endif  // KERAS_MP_TESTS_CUDA_GEMM_FIXTURE_CUH_
