// AVX-512 with the tile registers of AMX: eight of 16 rows of 64 bytes.
//
// The instructions are written in assembly, because the intrinsics take the number of a
// register only as a literal, and those of AMX-FP16 are younger than the assembler's.

#ifndef KERAS_MP_SRC_CPU_SIMD_AMX_H_
#define KERAS_MP_SRC_CPU_SIMD_AMX_H_

#include <cstdint>

#include "cpu/simd/avx512_bf16.h"
#include "cpu/simd/simd.h"

namespace keras_mp {

// A thread must configure the registers before it uses them. `row` is the distance of two
// rows in bytes.
struct AmxRegisters {
  // Every register has 16 rows of 64 bytes.
  static void Configure() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Configuration) == 64);
    const Configuration configuration;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }

  static void Release() { asm volatile("tilerelease" ::); }

  template <int kRegister>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
  }

  template <int kRegister>
  static void Load(const void* from, std::int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row),
                 "i"(kRegister)
                 : "memory");
  }

  template <int kRegister>
  static void Store(void* to, std::int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row),
                 "i"(kRegister)
                 : "memory");
  }
};

// Blocks for processors whose L1 cache has 48 KiB and whose L2 cache 2 MiB. Packing takes a
// third of the time, so tiles are wide.
struct Amx : Avx512Bf16 {
  static constexpr int kStepsPerBlock = 192;
  static constexpr int kTileColumns = 512;
  static constexpr int kSkinnyRowsRowMajorB = 4, kSkinnyRowsColumnMajorB = 4;
};

// MultiplyAdd: C += A * B of pairs along k, in FP32. The even elements and the odd ones
// are summed apart, from 0, then both, then with C; sums below 2^-126 are flushed to 0,
// and so are elements in bfloat16, but not in FP16.

struct AmxBf16 : Amx {
  struct TileRegisters : AmxRegisters {
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Bfloat16<AmxBf16>) {
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
    }
  };
};

struct AmxFp16 : Amx {
  struct TileRegisters : AmxRegisters {
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Bfloat16<AmxFp16>) {
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
    }
    template <int kC, int kA, int kB>
    static void MultiplyAdd(Half<AmxFp16>) {
      asm volatile("tdpfp16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
    }
  };
};

}  // namespace keras_mp

#endif  // KERAS_MP_SRC_CPU_SIMD_AMX_H_
