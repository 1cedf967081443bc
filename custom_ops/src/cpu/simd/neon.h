// NEON of aarch64: FP32 vectors of 4 lanes, 32 registers.

#ifndef KERAS_MP_SRC_CPU_SIMD_NEON_H_
#define KERAS_MP_SRC_CPU_SIMD_NEON_H_

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace keras_mp {

struct Neon {
  static constexpr int kWidth = 4;
  static constexpr int kMicroRows = 12;    // MR
  static constexpr int kStepsPerBlock = 256;  // KC: steps along k packed at a time
  static constexpr int kTileColumns = 256;    // NC: columns of a tile of C
  // The skinny GEMM: rows computed at a time, and up to how many rows it is faster than
  // packing, for row-major (sweep) and column-major (dot) B.
  static constexpr int kSweptRows = 4;
  static constexpr int kDotRows = 4;
  static constexpr int kSkinnyRowsRowMajorB = 8, kSkinnyRowsColumnMajorB = 8;

  typedef float Float __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));
  typedef std::uint8_t Bytes __attribute__((vector_size(16)));

  static Float Sqrt(Float x) { return vsqrtq_f32(x); }

  // The processor's own return NaN where a is NaN.
  static Float Min(Float a, Float b) { return a < b ? a : b; }
  static Float Max(Float a, Float b) { return a > b ? a : b; }

  static void Stream(float* to, Float x) { std::memcpy(to, &x, sizeof x); }

  static Float LoadHalf(const std::uint16_t* x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
  }

  static void StoreHalf(std::uint16_t* to, Float x) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x)));
  }

  // StoreInt16 saturates.
  static Ints LoadInt16(const std::int16_t* x) { return vmovl_s16(vld1_s16(x)); }
  static void StoreInt16(std::int16_t* to, Ints x) { vst1_s16(to, vqmovn_s32(x)); }

  // kWidth numbers of 8 bits, which have to be below 256.
  static Words LoadBytes(const std::uint8_t* x) {
    std::uint32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    const uint8x8_t low = vreinterpret_u8_u32(vdup_n_u32(bytes));
    return vmovl_u16(vget_low_u16(vmovl_u8(low)));
  }
  static void StoreBytes(std::uint8_t* to, Words x) {
    const uint16x4_t shorts = vmovn_u32(x);
    const uint8x8_t low = vmovn_u16(vcombine_u16(shorts, shorts));
    const std::uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(low), 0);
    std::memcpy(to, &bytes, sizeof bytes);
  }

  static Words Widen(Shorts x) { return __builtin_convertvector(x, Words); }
  static Shorts Narrow(Words x) { return __builtin_convertvector(x, Shorts); }
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_NEON_H_
