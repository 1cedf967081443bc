# The CPU kernels are templates over the instruction set. CMake writes one source file for
# each instruction set, from src/cpu/kernels_for_isa.cc.in, and compiles it with the flags
# of the table at the end.
#
# A new instruction set needs its struct in src/cpu/simd/NAME.h, a row of the table, a
# value of keras_mp::Isa, and its cases in src/cpu/runtime/isa.cc.

# What is compiled for an instruction set: the C++ type, the end of the function that
# returns it (Avx2Kernels) and of the constant (kKernels<Avx2>), and its two headers.
set(kernels_type Kernels)
set(kernels_name Kernels)
set(kernels_headers cpu/kernels.h cpu/kernels_simd.h)
set(attention_type AttentionKernel)
set(attention_name Attention)
set(attention_headers cpu/kernels.h cpu/attention/attention_kernel_simd.h)
set(bfloat16_gemm_type GemmKernel)
set(bfloat16_gemm_name Bfloat16Gemm)
set(bfloat16_gemm_headers cpu/kernels.h cpu/gemm/gemm_kernel_simd.h)
set(half_gemm_type GemmKernel)
set(half_gemm_name HalfGemm)
set(half_gemm_headers ${bfloat16_gemm_headers})
set(update_type UpdateKernel)
set(update_name UpdateKernel)
set(update_headers cpu/update/update_kernel.h cpu/update/update_kernel_simd.h)
# A step has the same bits on every machine, and as the operations of TensorFlow.
set(update_flags -ffp-contract=off)

# Sets `result` to 1 where the assembler has an instruction, else to 0.
include(CheckCXXSourceCompiles)
function(check_instruction instruction result)
  check_cxx_source_compiles("int main() { asm(\"${instruction}\"); }" assembles_${result})
  if(assembles_${result})
    set(${result} 1 PARENT_SCOPE)
  else()
    set(${result} 0 PARENT_SCOPE)
  endif()
endfunction()
check_instruction("tdpbf16ps %tmm6, %tmm4, %tmm0" has_amx_bf16)
check_instruction("tdpfp16ps %tmm6, %tmm4, %tmm0" has_amx_fp16)

# add_isa_kernels(ISA SIMD IF CONDITION [HEADER NAME] [X86_FLAGS FLAG...] KERNELS KIND...)
#
# Adds the kernels of each KIND for the struct SIMD of src/cpu/simd/NAME.h, by default
# that of ISA, to keras_mp_kernels. Where the preprocessor's CONDITION is false, the
# library is built without them.
function(add_isa_kernels isa simd)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "IF;HEADER" "X86_FLAGS;KERNELS")
  if(NOT arg_HEADER)
    set(arg_HEADER ${isa})
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(arg_X86_FLAGS "")
  endif()
  foreach(kind ${arg_KERNELS})
    set(type ${${kind}_type})
    set(function ${simd}${${kind}_name})
    set(constant k${${kind}_name})
    list(GET ${kind}_headers 0 declaration)
    list(GET ${kind}_headers 1 definition)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/cpu/${kind}_${isa}.cc)
    configure_file(src/cpu/kernels_for_isa.cc.in ${source} @ONLY)
    set_source_files_properties(${source} PROPERTIES
      COMPILE_OPTIONS "${arg_X86_FLAGS};${${kind}_flags}")
    target_sources(keras_mp_kernels PRIVATE ${source})
  endforeach()
endfunction()

add_isa_kernels(portable Portable
  IF 1
  KERNELS kernels update)
add_isa_kernels(neon Neon
  IF "defined(__aarch64__)"
  KERNELS kernels update)
add_isa_kernels(avx2 Avx2
  IF "defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)"
  X86_FLAGS -mavx2 -mfma -mf16c
  KERNELS kernels update)
add_isa_kernels(avx512 Avx512
  IF "defined(__AVX512F__) && defined(__FMA__) && defined(__F16C__)"
  X86_FLAGS -mavx512f -mfma -mf16c
  KERNELS kernels update)
# Its dot products of bfloat16 are of use to the GEMM and to attention; all else is that of
# avx512.
add_isa_kernels(avx512_bf16 Avx512Bf16
  IF "defined(__AVX512BF16__)"
  X86_FLAGS -mavx512f -mavx512bf16 -mfma -mf16c
  KERNELS attention bfloat16_gemm)
# So are the tile registers of AMX.
add_isa_kernels(amx_bf16 AmxBf16
  IF "${has_amx_bf16} && defined(__AVX512BF16__)"
  HEADER amx
  X86_FLAGS -mavx512f -mavx512bf16 -mfma -mf16c
  KERNELS attention bfloat16_gemm half_gemm)
add_isa_kernels(amx_fp16 AmxFp16
  IF "${has_amx_fp16} && defined(__AVX512BF16__)"
  HEADER amx
  X86_FLAGS -mavx512f -mavx512bf16 -mfma -mf16c
  KERNELS bfloat16_gemm half_gemm)
