// The histogram of the exponents of an array, for one instruction set: a template, as
// cpu/gemm/gemm_kernel_simd.h.
//
//   counts[bin of x[i]] += 1   for all i; the bins are those of exponent_histogram_cpu.h
//
// A block of 2,048 or 4,096 numbers is read from memory once, and its biased exponents in
// FP32 become an array of bytes, in any order, in the cache of the first level. The numbers
// of a tensor rarely have more than 20 to 40 different exponents, so that it is fastest to
// compare all bytes with each of these; a block that has more is counted with a table. The
// bytes 0 and 255 do not tell zeros from subnormal numbers, nor infinities from NaN; a
// block with such bytes is read again, from the cache.
//
//   cmake --build build/custom_ops --target exponent_histogram_cpu_test &&
//     build/custom_ops/exponent_histogram_cpu_test
//   python benchmarks/exponent_histogram.py

#ifndef KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_SIMD_H_
#define KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_SIMD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/histogram/exponent_histogram_kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/vector_loop.h"
#include "keras_mp/exponent_histogram_cpu.h"

namespace keras_mp {

template <class Simd>
class ExponentHistogramOf {
 public:
  static void Count(DataType type, const void* x, std::int64_t first, std::int64_t size,
                    std::int64_t* counts) {
    if (type == DataType::kFloat) {
      CountBlocks<Single<Simd>>(static_cast<const float*>(x) + first, size, counts);
      return;
    }
    const auto* numbers = static_cast<const std::uint16_t*>(x) + first;
    if (type == DataType::kHalf) {
      CountBlocks<Half<Simd>>(numbers, size, counts);
    } else {
      CountBlocks<Bfloat16<Simd>>(numbers, size, counts);
    }
  }

 private:
  using Words = typename Simd::Words;
  using Bytes = typename Simd::Bytes;
  static constexpr int kWidth = Simd::kWidth;
  static constexpr int kBytes = sizeof(Bytes);

  // The numbers whose exponents fill the bytes of `Words`.
  static constexpr int kGroup = 4 * kWidth;
  // A byte of a vector counts to 255 at most. A block of half as many fits into the cache
  // of the first level with its exponents.
  static constexpr int kBlock = 128 * kBytes;

  static constexpr int kExponents = 256;  // of FP32; the last is that of inf and NaN
  static constexpr int kBias = 127;
  static constexpr int kBinsAtATime = 4;
  // Up to here the comparisons, two operations a vector and bin, take less time than the
  // table, which counts one number in a cycle.
  static constexpr int kMostCompared = 2 * kBytes;
  static constexpr int kTables = 8;

  template <class Format>
  static void CountBlocks(const typename Format::Element* x, std::int64_t size,
                          std::int64_t* counts) {
    for (std::int64_t at = 0; at < size; at += kBlock) {
      CountBlock<Format>(x + at, std::min<std::int64_t>(kBlock, size - at), counts);
    }
  }

  template <class Format>
  static void CountBlock(const typename Format::Element* x, std::int64_t size,
                         std::int64_t* counts) {
    alignas(64) std::uint8_t exponents[kBlock];
    const int padded = StoreExponents<Format>(x, size, exponents);
    const auto [first, last] = RangeOf(exponents, padded);
    std::uint32_t found[kExponents + kBinsAtATime] = {};
    if (last - first < kMostCompared) {
      CountByComparing(exponents, padded, first, last, found);
    } else {
      CountInTables(exponents, padded, found);
    }
    std::int64_t small = size;
    for (int e = first; e <= std::min(last, kExponents - 2); ++e) {
      counts[kBinOfOne - kBias + e] += found[e];
      small -= found[e];
    }
    const std::int64_t large = found[kExponents - 1];
    CountRest<Format>(x, size, small - large, large, counts);
  }

  // Returns the number of bytes written; those behind the last number are 0.
  template <class Format>
  static int StoreExponents(const typename Format::Element* x, std::int64_t size,
                            std::uint8_t* exponents) {
    int at = 0;
    for (; at + kGroup <= size; at += kGroup) {
      const Words group = Exponents<Format>(x + at);
      std::memcpy(exponents + at, &group, sizeof group);
    }
    if (at < size) {
      typename Format::Element tail[kGroup] = {};
      std::memcpy(tail, x + at, (size - at) * sizeof *x);
      const Words group = Exponents<Format>(tail);
      std::memcpy(exponents + at, &group, sizeof group);
      at += kGroup;
    }
    return at;
  }

  // The biased exponents of kGroup numbers in FP32, a byte each, in any order.
  template <class Format>
  static Words Exponents(const typename Format::Element* x) {
    if constexpr (std::is_same_v<Format, Bfloat16<Simd>>) {
      Words a, b;  // two numbers a word
      std::memcpy(&a, x, sizeof a);
      std::memcpy(&b, x + 2 * kWidth, sizeof b);
      return (a >> 7 & 0x00ff00ffu) | (b << 1 & 0xff00ff00u);
    } else {
      const auto bits = [x](int i) {
        return reinterpret_cast<Words>(Format::Load(x + i * kWidth));
      };
      return (bits(0) >> 23 & 0xffu) | (bits(1) >> 15 & 0xff00u) |
             (bits(2) >> 7 & 0xff0000u) | (bits(3) << 1 & 0xff000000u);
    }
  }

  struct Range {
    int first, last;
  };

  // The smallest and the largest of the bytes that are not 0; empty if there are none.
  static Range RangeOf(const std::uint8_t* exponents, int size) {
    Bytes smallest = ~Bytes{}, largest = {};  // smallest - 1, in which 0 becomes 255
    for (int at = 0; at < size; at += kBytes) {
      const Bytes bytes = LoadBytes(exponents + at), less = bytes - 1;
      smallest = less < smallest ? less : smallest;
      largest = bytes > largest ? bytes : largest;
    }
    Range range = {kExponents, 0};
    for (int i = 0; i < kBytes; ++i) {
      range.first = std::min(range.first, smallest[i] + 1);
      range.last = std::max<int>(range.last, largest[i]);
    }
    return range;
  }

  static void CountByComparing(const std::uint8_t* exponents, int size, int first,
                               int last, std::uint32_t* found) {
    for (; first <= last; first += kBinsAtATime) {
      Bytes counts[kBinsAtATime] = {};
      for (int at = 0; at < size; at += kBytes) {
        const Bytes bytes = LoadBytes(exponents + at);
#pragma GCC unroll 4
        for (int i = 0; i < kBinsAtATime; ++i) {
          const auto exponent = static_cast<std::uint8_t>(first + i);
          counts[i] -= reinterpret_cast<Bytes>(bytes == exponent);  // true is -1
        }
      }
      for (int i = 0; i < kBinsAtATime; ++i) found[first + i] = SumOf(counts[i]);
    }
  }

  // Of several tables each counts every eighth number: where neighbours are equal, the
  // counter of one would have to wait until that of the other is stored.
  static void CountInTables(const std::uint8_t* exponents, int size,
                            std::uint32_t* found) {
    std::uint32_t tables[kTables][kExponents] = {};
    for (int at = 0; at < size; at += kTables) {
      std::uint64_t bytes;
      std::memcpy(&bytes, exponents + at, sizeof bytes);
#pragma GCC unroll 8
      for (int i = 0; i < kTables; ++i) ++tables[i][bytes >> (8 * i) & 0xffu];
    }
    for (const auto& table : tables) {
      for (int e = 0; e < kExponents; ++e) found[e] += table[e];
    }
  }

  // Counts the `small` zeros and subnormal numbers, and the `large` infinities and NaN.
  template <class Format>
  static void CountRest(const typename Format::Element* x, std::int64_t size,
                        std::int64_t small, std::int64_t large, std::int64_t* counts) {
    if (small > 0) {
      const std::int64_t subnormals =
          HasSubnormals<Format>(x, size) ? CountSubnormals<Format>(x, size, counts) : 0;
      counts[kZeroBin] += small - subnormals;
    }
    if (large > 0) {
      const std::int64_t infinities = CountInfinities<Format>(x, size);
      counts[kInfinityBin] += infinities;
      counts[kNanBin] += large - infinities;
    }
  }

  template <class Format>
  static bool HasSubnormals(const typename Format::Element* x, std::int64_t size) {
    if (std::is_same_v<Format, Half<Simd>>) return false;  // they are normal in FP32
    Words smallest = ~Words{};  // magnitude - 1, in which 0 is the largest number
    ForVectors<Simd, Format, 4>(size, [&](auto part, std::int64_t at) {
#pragma GCC unroll 4
      for (int v = 0; v < part.kVectors; ++v) {
        const Words less = Magnitudes(part.Load(x + at, v)) - 1;
        smallest = less < smallest ? less : smallest;
      }
    });
    std::uint32_t least = kLargestSubnormal;
    for (int i = 0; i < kWidth; ++i) least = std::min(least, smallest[i]);
    return least < kLargestSubnormal;
  }

  // Returns how many there are. They are rare.
  template <class Format>
  static std::int64_t CountSubnormals(const typename Format::Element* x,
                                      std::int64_t size, std::int64_t* counts) {
    std::int64_t found = 0;
    ForVectors<Simd, Format, 1>(size, [&](auto part, std::int64_t at) {
      const Words magnitudes = Magnitudes(part.Load(x + at, 0));
      for (int i = 0; i < kWidth; ++i) {
        const std::uint32_t multiple = magnitudes[i];  // of 2^-149, whose bin is 1
        if (multiple - 1 >= kLargestSubnormal) continue;
        ++counts[32 - __builtin_clz(multiple)];
        ++found;
      }
    });
    return found;
  }

  template <class Format>
  static std::int64_t CountInfinities(const typename Format::Element* x,
                                      std::int64_t size) {
    Words infinities = {};
    ForVectors<Simd, Format, 1>(size, [&](auto part, std::int64_t at) {
      const Words magnitudes = Magnitudes(part.Load(x + at, 0));
      infinities -= reinterpret_cast<Words>(magnitudes == kInfinity);  // true is -1
    });
    return SumOf(infinities);
  }

  static constexpr std::uint32_t kLargestSubnormal = 0x7fffffu;
  static constexpr std::uint32_t kInfinity = 0x7f800000u;

  static Words Magnitudes(typename Simd::Float x) {
    return reinterpret_cast<Words>(x) & 0x7fffffffu;
  }

  static Bytes LoadBytes(const std::uint8_t* x) {
    Bytes bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return bytes;
  }

  template <class Vector>
  static std::uint32_t SumOf(Vector x) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < sizeof x / sizeof x[0]; ++i) sum += x[i];
    return sum;
  }
};

template <class Simd>
constexpr ExponentHistogramKernel kExponentHistogramKernel = {
    ExponentHistogramOf<Simd>::Count};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_HISTOGRAM_EXPONENT_HISTOGRAM_KERNEL_SIMD_H_
