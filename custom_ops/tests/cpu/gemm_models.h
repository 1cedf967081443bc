// Models of the instructions that few machines have, as instruction sets of the GEMM.

#ifndef KERAS_MP_TESTS_CPU_GEMM_MODELS_H_
#define KERAS_MP_TESTS_CPU_GEMM_MODELS_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/fixture.h"
#include "common/half.h"
#include "cpu/simd/portable.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

inline float Flushed(float x) {
  return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// An FP32 multiply-add of one rounding; magnitudes below 2^-126 are 0, before and after.
// What std::fma rounds up to 2^-126 stays, where a machine may flush it.
inline float FlushedMultiplyAdd(float x, float y, float sum) {
  return Flushed(std::fma(Flushed(x), Flushed(y), Flushed(sum)));
}

// The element of a pair that starts at bit `shift`.
inline std::uint16_t ElementOf(std::uint32_t pair, int shift) {
  return static_cast<std::uint16_t>(pair >> shift);
}

// vdpbf16ps: in each lane two multiply-adds, the odd elements first.
struct DotModel : Portable {
  static Float DotBfloat16(Float sum, Float a, Float b) {
    for (int lane = 0; lane < kWidth; ++lane) {
      const std::uint32_t pair_a = BitsOf(a[lane]), pair_b = BitsOf(b[lane]);
      for (const int shift : {16, 0}) {
        sum[lane] = FlushedMultiplyAdd(Bfloat16ToFloat(ElementOf(pair_a, shift)),
                                       Bfloat16ToFloat(ElementOf(pair_b, shift)),
                                       sum[lane]);
      }
    }
    return sum;
  }
};

// AMX: eight registers of 16 rows of 16 words, tdpbf16ps and tdpfp16ps. Each of them sums
// the products of the even elements and those of the odd ones apart, from 0, then both,
// then with C. Subnormal FP16 numbers are not flushed. A register that is used before the
// thread has configured it is a failure.
struct AmxModel {
  static constexpr int kWidth = 16;
  static constexpr int kMicroRows = 14, kStepsPerBlock = 192;
  static constexpr int kTileColumns = 512;
  static constexpr int kSweptRows = 4, kDotRows = 6;
  static constexpr int kSkinnyRowsRowMajorB = 4, kSkinnyRowsColumnMajorB = 4;

  typedef float Float __attribute__((vector_size(64)));
  typedef std::int32_t Ints __attribute__((vector_size(64)));
  typedef std::uint32_t Words __attribute__((vector_size(64)));
  typedef std::uint16_t Shorts __attribute__((vector_size(32)));
  typedef std::uint8_t Bytes __attribute__((vector_size(64)));

  static Float Min(Float a, Float b) { return a < b ? a : b; }
  static Float Max(Float a, Float b) { return a > b ? a : b; }

  static Float LoadHalf(const std::uint16_t* x) {
    Float v;
    for (int i = 0; i < kWidth; ++i) v[i] = HalfToFloat(x[i]);
    return v;
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    for (int i = 0; i < kWidth; ++i) to[i] = FloatToHalf(x[i]);
  }

  static Words Widen(Shorts x) { return __builtin_convertvector(x, Words); }
  static Shorts Narrow(Words x) { return __builtin_convertvector(x, Shorts); }

  class TileRegisters {
   public:
    static void Configure() {
      EXPECT(!configured, "configured twice");
      configured = true;
    }
    static void Release() { configured = false; }

    template <int kRegister>
    static void Zero() {
      std::memset(Words(kRegister), 0, sizeof registers[kRegister]);
    }
    template <int kRegister>
    static void Load(const void* from, std::int64_t row) {
      for (std::int64_t i = 0; i < kWidth; ++i) {
        std::memcpy(Words(kRegister)[i], static_cast<const char*>(from) + i * row,
                    sizeof registers[kRegister][i]);
      }
    }
    template <int kRegister>
    static void Store(void* to, std::int64_t row) {
      for (std::int64_t i = 0; i < kWidth; ++i) {
        std::memcpy(static_cast<char*>(to) + i * row, Words(kRegister)[i],
                    sizeof registers[kRegister][i]);
      }
    }
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Bfloat16<AmxModel>) {
      MultiplyAdd(Words(kC), Words(kA), Words(kB), Bfloat16ToFloat);
    }
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Half<AmxModel>) {
      MultiplyAdd(Words(kC), Words(kA), Words(kB), HalfToFloat);
    }

   private:
    using Row = std::uint32_t[kWidth];

    template <class ToFloat>
    static void MultiplyAdd(Row* c, const Row* a, const Row* b, ToFloat to_float) {
      for (int i = 0; i < kWidth; ++i) {
        for (int j = 0; j < kWidth; ++j) {
          float even = 0, odd = 0;
          for (int k = 0; k < kWidth; ++k) {
            even = FlushedMultiplyAdd(to_float(ElementOf(a[i][k], 0)),
                                      to_float(ElementOf(b[k][j], 0)), even);
            odd = FlushedMultiplyAdd(to_float(ElementOf(a[i][k], 16)),
                                     to_float(ElementOf(b[k][j], 16)), odd);
          }
          float sum;
          std::memcpy(&sum, &c[i][j], sizeof sum);
          sum = Flushed(Flushed(sum) + Flushed(even + odd));
          std::memcpy(&c[i][j], &sum, sizeof sum);
        }
      }
    }

    static Row* Words(int index) {
      EXPECT(configured, "register %d is not configured", index);
      return registers[index];
    }

    static inline thread_local bool configured = false;
    static inline thread_local std::uint32_t registers[8][kWidth][kWidth];
  };
};

// AMX without tdpfp16ps.
struct AmxBf16Model : AmxModel {
  struct TileRegisters : AmxModel::TileRegisters {
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Bfloat16<AmxBf16Model>) {
      AmxModel::TileRegisters::MultiplyAdd<kC, kA, kB>(Bfloat16<AmxModel>());
    }
  };

  static Float PairsOfBfloat16(Float first, Float second) {
    std::uint16_t shorts[2 * kWidth];
    for (int i = 0; i < kWidth; ++i) {
      shorts[i] = FloatToBfloat16(first[i]);
      shorts[kWidth + i] = FloatToBfloat16(second[i]);
    }
    Float pairs;
    std::memcpy(&pairs, shorts, sizeof pairs);
    return pairs;
  }
};

}  // namespace keras_mp

#endif  // KERAS_MP_TESTS_CPU_GEMM_MODELS_H_
