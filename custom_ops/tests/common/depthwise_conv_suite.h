// Tests of depthwise_conv.h against double precision, for every device that computes it. A
// Device has Name(), and Convolve, GradX and GradKernel for arrays in host memory, which it
// computes before it returns.

#ifndef KERAS_MP_TESTS_COMMON_DEPTHWISE_CONV_SUITE_H_
#define KERAS_MP_TESTS_COMMON_DEPTHWISE_CONV_SUITE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/fixture.h"
#include "keras_mp/depthwise_conv.h"

namespace keras_mp::depthwise_conv {

constexpr std::uint16_t kGuard = 0xa5a5;

struct Spacing {
  std::int64_t kernel, stride, dilation;
};

inline ConvolvedDimension Dimension(std::int64_t size, const Spacing& spacing, bool same) {
  return Convolved(size, spacing.kernel, spacing.stride, spacing.dilation, same);
}

struct Case {
  DepthwiseConv conv;
  std::vector<std::uint16_t> x, grad_y, rounded_kernel;
  std::vector<float> kernel, bias;

  Case(std::int64_t batch, std::int64_t channels, const ConvolvedDimension& rows,
       const ConvolvedDimension& columns, DataType type, bool is_master,
       std::mt19937& random) {
    conv.batch = batch;
    conv.channels = channels;
    conv.dimensions[0] = rows;
    conv.dimensions[1] = columns;
    conv.type = type;
    conv.kernel_type = is_master ? DataType::kFloat : type;
    x = Numbers(type, SizeOfX(), 0.25, 1, random);
    grad_y = Numbers(type, SizeOfY(), 0.25, 1, random);
    kernel = Floats(rows.kernel * columns.kernel * channels, 0, 1, random);
    for (float number : kernel) rounded_kernel.push_back(To16(type, number));
    bias = Floats(channels, 0, 1, random);
  }

  std::int64_t SizeOfX() const {
    return conv.batch * conv.dimensions[0].size * conv.dimensions[1].size * conv.channels;
  }
  std::int64_t SizeOfY() const {
    return conv.batch * conv.dimensions[0].result * conv.dimensions[1].result *
           conv.channels;
  }
  const void* Kernel() const {
    if (conv.kernel_type == DataType::kFloat) return kernel.data();
    return rounded_kernel.data();
  }

  // Calls visit(x, y, kernel) for the indices of each product.
  template <class Visit>
  void ForProducts(const Visit& visit) const {
    const auto& [rows, columns] = conv.dimensions;
    for (std::int64_t n = 0; n < conv.batch; ++n) {
      for (std::int64_t o = 0; o < rows.result; ++o) {
        for (std::int64_t p = 0; p < columns.result; ++p) {
          for (std::int64_t i = 0; i < rows.kernel; ++i) {
            for (std::int64_t j = 0; j < columns.kernel; ++j) {
              const std::int64_t a = o * rows.stride - rows.before + i * rows.dilation;
              const std::int64_t b =
                  p * columns.stride - columns.before + j * columns.dilation;
              if (a < 0 || a >= rows.size || b < 0 || b >= columns.size) continue;
              for (std::int64_t c = 0; c < conv.channels; ++c) {
                visit(((n * rows.size + a) * columns.size + b) * conv.channels + c,
                      ((n * rows.result + o) * columns.result + p) * conv.channels + c,
                      (i * columns.kernel + j) * conv.channels + c);
              }
            }
          }
        }
      }
    }
  }
};

// Sums in double precision, and those of absolute values.
struct Expected {
  std::vector<double> sums, magnitudes;

  explicit Expected(std::int64_t size) : sums(size), magnitudes(size) {}

  void Add(std::int64_t i, double number) {
    sums[i] += number;
    magnitudes[i] += std::abs(number);
  }
};

template <class Device>
void CheckY(const Case& one, bool has_bias, DataType y_type, Device& device) {
  const DepthwiseConv& conv = one.conv;
  Expected expected(one.SizeOfY());
  for (std::int64_t i = 0; has_bias && i < one.SizeOfY(); ++i) {
    expected.Add(i, one.bias[i % conv.channels]);
  }
  one.ForProducts([&](std::int64_t x, std::int64_t y, std::int64_t k) {
    expected.Add(y, static_cast<double>(From16(conv.type, one.x[x])) *
                        From16(conv.type, one.rounded_kernel[k]));
  });
  std::vector<std::uint16_t> y(one.SizeOfY() + 1, kGuard);
  std::vector<float> wide(one.SizeOfY() + 1, kGuard);
  const bool is_wide = y_type == DataType::kFloat;
  const Status status = device.Convolve(
      conv, one.x.data(), one.Kernel(), has_bias ? one.bias.data() : nullptr,
      DataType::kFloat, is_wide ? static_cast<void*>(wide.data()) : y.data(), y_type);
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(y.back() == kGuard && wide.back() == kGuard, "wrote behind y");
  const auto& [rows, columns] = conv.dimensions;
  const double unit = static_cast<double>(rows.kernel * columns.kernel + 1) * 0x1p-24;
  for (std::int64_t i = 0; i < one.SizeOfY(); ++i) {
    const double actual = is_wide ? wide[i] : From16(conv.type, y[i]);
    const double error = unit * expected.magnitudes[i];
    const double bound =
        is_wide ? error : Rounded(conv.type, expected.sums[i], error);
    EXPECT(std::abs(actual - expected.sums[i]) <= bound,
           "%s y channels %ld at %ld: %.9g, expected %.9g", device.Name(), conv.channels, i,
           actual, expected.sums[i]);
  }
}

template <class Device>
void CheckGradX(const Case& one, Device& device) {
  const DepthwiseConv& conv = one.conv;
  Expected expected(one.SizeOfX());
  one.ForProducts([&](std::int64_t x, std::int64_t y, std::int64_t k) {
    expected.Add(x, static_cast<double>(From16(conv.type, one.grad_y[y])) *
                        From16(conv.type, one.rounded_kernel[k]));
  });
  std::vector<std::uint16_t> grad_x(one.SizeOfX() + 1, kGuard);
  const Status status =
      device.GradX(conv, one.Kernel(), one.grad_y.data(), grad_x.data());
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(grad_x.back() == kGuard, "wrote behind grad_x");
  const auto& [rows, columns] = conv.dimensions;
  const double unit = static_cast<double>(rows.kernel * columns.kernel + 1) * 0x1p-24;
  for (std::int64_t i = 0; i < one.SizeOfX(); ++i) {
    const double actual = From16(conv.type, grad_x[i]);
    const double error = unit * expected.magnitudes[i];
    EXPECT(std::abs(actual - expected.sums[i]) <=
               Rounded(conv.type, expected.sums[i], error),
           "%s grad_x channels %ld at %ld: %.9g, expected %.9g", device.Name(),
           conv.channels, i, actual, expected.sums[i]);
  }
}

template <class Device>
void CheckGradKernel(const Case& one, Device& device) {
  const DepthwiseConv& conv = one.conv;
  const auto size = static_cast<std::int64_t>(one.kernel.size());
  Expected expected(size);
  one.ForProducts([&](std::int64_t x, std::int64_t y, std::int64_t k) {
    expected.Add(k, static_cast<double>(From16(conv.type, one.x[x])) *
                        From16(conv.type, one.grad_y[y]));
  });
  std::vector<float> grad_kernel(size + 1, kGuard);
  const Status status =
      device.GradKernel(conv, one.x.data(), one.grad_y.data(), grad_kernel.data());
  EXPECT(status.ok(), "%s", status.message);
  EXPECT(grad_kernel.back() == kGuard, "wrote behind grad_kernel");
  for (std::int64_t i = 0; i < size; ++i) {
    EXPECT(std::abs(grad_kernel[i] - expected.sums[i]) <=
               0x1p-15 * expected.magnitudes[i],
           "%s grad_kernel channels %ld at %ld: %.9g, expected %.9g", device.Name(),
           conv.channels, i, grad_kernel[i], expected.sums[i]);
  }
}

inline std::int64_t UpTo(std::int64_t most, std::mt19937& random) {
  return std::uniform_int_distribution<std::int64_t>(1, most)(random);
}

template <class Device>
void CheckAll(const Case& one, std::mt19937& random, Device& device) {
  for (const DataType y_type : {one.conv.type, DataType::kFloat}) {
    CheckY(one, /*has_bias=*/random() % 2, y_type, device);
  }
  CheckGradX(one, device);
  CheckGradKernel(one, device);
}

template <class Device>
void TestSpacings(Device& device, const std::vector<std::int64_t>& all_channels) {
  std::mt19937 random(1);
  for (const bool same : {false, true}) {
    for (const std::int64_t channels : all_channels) {
      for (const Spacing& spacing :
           {Spacing{1, 1, 1}, Spacing{3, 1, 1}, Spacing{3, 2, 1}, Spacing{3, 1, 2},
            Spacing{2, 3, 1}, Spacing{5, 2, 3}, Spacing{4, 4, 2}, Spacing{3, 6, 4}}) {
        const Spacing other = {UpTo(5, random), UpTo(3, random), UpTo(2, random)};
        const DataType type = random() % 2 ? DataType::kHalf : DataType::kBfloat16;
        const Case one(2, channels, Dimension(2 + UpTo(9, random), spacing, same),
                       Dimension(2 + UpTo(15, random), other, same), type,
                       /*is_master=*/random() % 2, random);
        CheckAll(one, random, device);
      }
    }
  }
}

// Rows longer than a span, and more of them than parts.
template <class Device>
void TestManyRows(Device& device) {
  std::mt19937 random(2);
  for (const auto& [batch, rows, columns] :
       {std::tuple{1, 1, 700}, std::tuple{70, 3, 3}, std::tuple{2, 40, 300}}) {
    const Spacing spacing = {3, 1, 1};
    const Case one(batch, 3, Dimension(rows, spacing, true),
                   Dimension(columns, spacing, true), DataType::kHalf, true, random);
    CheckAll(one, random, device);
  }
}

// 100,000 products of 1 are exact; in FP16 their sum would stop at 2,048.
template <class Device>
void TestALongSum(Device& device) {
  std::mt19937 random(3);
  Case one(1, 9, Dimension(1, {1, 1, 1}, false), Dimension(100'000, {1, 1, 1}, false),
           DataType::kHalf, true, random);
  std::fill(one.x.begin(), one.x.end(), FloatToHalf(1));
  std::fill(one.grad_y.begin(), one.grad_y.end(), FloatToHalf(1));
  std::vector<float> grad_kernel(9);
  const Status status =
      device.GradKernel(one.conv, one.x.data(), one.grad_y.data(), grad_kernel.data());
  EXPECT(status.ok(), "%s", status.message);
  for (const float number : grad_kernel) {
    EXPECT(number == 100'000, "%s: %f", device.Name(), number);
  }
}

template <class Device>
void TestNothing(Device& device) {
  std::mt19937 random(5);
  const ConvolvedDimension three = Dimension(3, {3, 1, 1}, true);
  const ConvolvedDimension too_small = Dimension(2, {3, 1, 1}, false);
  for (const auto& [batch, channels, dimension] :
       {std::tuple{0, 3, three}, std::tuple{3, 0, three}, std::tuple{2, 3, too_small}}) {
    CheckAll(Case(batch, channels, dimension, dimension, DataType::kHalf, true, random),
             random, device);
  }
}

template <class Device>
void TestErrors(Device& device) {
  DepthwiseConv conv;
  const auto code = [&](DataType bias_type = DataType::kFloat) {
    return device
        .Convolve(conv, nullptr, nullptr, nullptr, bias_type, nullptr, DataType::kFloat)
        .code;
  };
  EXPECT(code() == StatusCode::kOk, "nothing to do");
  EXPECT(code(DataType::kBfloat16) == StatusCode::kInvalidArgument, "another bias");
  conv.kernel_type = DataType::kBfloat16;
  EXPECT(code() == StatusCode::kInvalidArgument, "another kernel");
  conv.kernel_type = DataType::kFloat;
  conv.dimensions[1].stride = 0;
  EXPECT(code() == StatusCode::kInvalidArgument, "no stride");
  conv.dimensions[1].stride = 1;
  conv.channels = -1;
  EXPECT(code() == StatusCode::kInvalidArgument, "channels");
  conv.channels = 0;
  conv.type = DataType::kFloat;
  EXPECT(code() == StatusCode::kInvalidArgument, "FP32");
}

template <class Device>
void TestAll(Device& device, const std::vector<std::int64_t>& channels) {
  std::printf("%s\n", device.Name());
  TestSpacings(device, channels);
  TestManyRows(device);
  TestALongSum(device);
  TestNothing(device);
  TestErrors(device);
}

}  // namespace keras_mp::depthwise_conv

#endif  // KERAS_MP_TESTS_COMMON_DEPTHWISE_CONV_SUITE_H_
