# The CUDA kernels: the libraries keras_mp_gemm_cuda, keras_mp_update_cuda and
# keras_mp_norm_cuda, their tests and benchmarks.
#
# KERAS_MP_CUDA_ARCHITECTURES  the architectures that are compiled, in the syntax of
#     CMAKE_CUDA_ARCHITECTURES. By default: Volta if the compiler still supports it,
#     Turing, Ampere (which runs on every 8.x) and Hopper, whose PTX newer devices compile
#     when they first load it.
# KERAS_MP_CUBLASLT_INCLUDE    the folder of cublasLt.h. By default that of the CUDA
#     toolkit, or of the Python packages of NVIDIA or TensorFlow. Without it the library is
#     built without the cuBLASLt route.

# Before enable_language, which would choose an architecture.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "keras_mp needs CUDA 12 or newer.\n"
    "Received: ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}.\n"
    "Name another one with -DCMAKE_CUDA_COMPILER, or build with -DKERAS_MP_CUDA=OFF.")
endif()

set(keras_mp_architectures 75-real 80-real 90)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  list(PREPEND keras_mp_architectures 70-real)
endif()
set(KERAS_MP_CUDA_ARCHITECTURES "${keras_mp_architectures}" CACHE STRING
  "CUDA architectures of keras_mp")

if(NOT KERAS_MP_CUBLASLT_INCLUDE)
  # In the site-packages of the Python that CMake finds; they need not be importable.
  find_package(Python3 COMPONENTS Interpreter QUIET)
  find_path(KERAS_MP_CUBLASLT_INCLUDE cublasLt.h
    HINTS
      ${CUDAToolkit_INCLUDE_DIRS}
      ${Python3_SITELIB}/nvidia/cublas/include
      ${Python3_SITELIB}/nvidia/cu13/include
      ${Python3_SITELIB}/tensorflow/include/external/cuda_cublas/include
    DOC "Folder of cublasLt.h")
endif()
if(KERAS_MP_CUBLASLT_INCLUDE)
  message(STATUS "keras_mp: cublasLt.h in ${KERAS_MP_CUBLASLT_INCLUDE}")
else()
  message(STATUS "keras_mp: no cublasLt.h, building without the cuBLASLt route")
endif()

add_library(keras_mp_cuda_options INTERFACE)
target_compile_options(keras_mp_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>)

if(KERAS_MP_CUBLASLT_INCLUDE)
  set(cublaslt_sources
    src/cuda/gemm/cublaslt.cc
    src/cuda/gemm/cublaslt_descriptors.cc
    src/cuda/gemm/cublaslt_heuristics.cc
    src/cuda/gemm/cublaslt_library.cc)
else()
  set(cublaslt_sources src/cuda/gemm/cublaslt_absent.cc)
endif()
add_library(keras_mp_gemm_cuda STATIC
  ${cublaslt_sources}
  src/cuda/gemm/gemm.cu
  src/cuda/gemm/mma_bfloat16.cu
  src/cuda/gemm/mma_half.cu
  src/cuda/gemm/plan.cc
  src/cuda/gemm/wmma.cu)
set_target_properties(keras_mp_gemm_cuda PROPERTIES
  CUDA_ARCHITECTURES "${KERAS_MP_CUDA_ARCHITECTURES}"
  POSITION_INDEPENDENT_CODE ON)
target_include_directories(keras_mp_gemm_cuda PUBLIC include PRIVATE src)
# -idirafter: searched after the folder of the toolkit, so that only cublasLt.h is from
# another version.
if(KERAS_MP_CUBLASLT_INCLUDE)
  set_source_files_properties(${cublaslt_sources} PROPERTIES
    COMPILE_OPTIONS "-idirafter;${KERAS_MP_CUBLASLT_INCLUDE}")
endif()
target_link_libraries(keras_mp_gemm_cuda
  PUBLIC keras_mp_kernels CUDA::cudart_static ${CMAKE_DL_LIBS}
  PRIVATE keras_mp_cuda_options)

add_library(keras_mp_update_cuda STATIC src/cuda/update/update.cu)
set_target_properties(keras_mp_update_cuda PROPERTIES
  CUDA_ARCHITECTURES "${KERAS_MP_CUDA_ARCHITECTURES}"
  POSITION_INDEPENDENT_CODE ON)
# No multiply and add are contracted, so that a step has the bits of update_cpu.h.
target_compile_options(keras_mp_update_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
target_include_directories(keras_mp_update_cuda PUBLIC include PRIVATE src)
target_link_libraries(keras_mp_update_cuda
  PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS}
  PRIVATE keras_mp_cuda_options)

add_library(keras_mp_norm_cuda STATIC
  src/cuda/conv/depthwise_conv.cu
  src/cuda/norm/batch_norm.cu
  src/cuda/norm/norm.cu)
set_target_properties(keras_mp_norm_cuda PROPERTIES
  CUDA_ARCHITECTURES "${KERAS_MP_CUDA_ARCHITECTURES}"
  POSITION_INDEPENDENT_CODE ON)
target_include_directories(keras_mp_norm_cuda PUBLIC include PRIVATE src)
target_link_libraries(keras_mp_norm_cuda
  PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS}
  PRIVATE keras_mp_cuda_options)

if(KERAS_MP_TESTS)
  find_package(Threads REQUIRED)
  add_executable(gemm_cuda_test tests/cuda/gemm_test.cu)
  add_executable(gemm_cuda_benchmark benchmarks/gemm_cuda.cu)
  add_executable(norm_cuda_test tests/cuda/norm_test.cu)
  add_executable(update_cuda_test tests/cuda/update_test.cu)
  add_executable(update_cuda_benchmark benchmarks/update_cuda.cu)
  foreach(target gemm_cuda_test gemm_cuda_benchmark norm_cuda_test update_cuda_test
          update_cuda_benchmark)
    set_target_properties(${target} PROPERTIES
      CUDA_ARCHITECTURES "${KERAS_MP_CUDA_ARCHITECTURES}")
    target_include_directories(${target} PRIVATE tests src)
    target_link_libraries(${target} PRIVATE
      keras_mp_gemm_cuda keras_mp_norm_cuda keras_mp_update_cuda keras_mp_cuda_options
      Threads::Threads)
  endforeach()
  foreach(test gemm_cuda_test norm_cuda_test update_cuda_test)
    add_test(NAME ${test} COMMAND ${test})
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()

  if(KERAS_MP_CUBLASLT_INCLUDE)
    # It has the soname that cublaslt_library.cc opens, but is in no folder of the loader.
    add_library(fake_cublaslt MODULE tests/cuda/fake_cublaslt.cc)
    target_link_options(fake_cublaslt PRIVATE -Wl,-soname,libcublasLt.so.13)
    # Not linked to CUDA: the test defines cudaGetDevice.
    add_executable(gemm_cublaslt_test
      tests/cuda/gemm_cublaslt_test.cc ${cublaslt_sources})
    target_link_libraries(gemm_cublaslt_test PRIVATE ${CMAKE_DL_LIBS})
    foreach(target fake_cublaslt gemm_cublaslt_test)
      set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET default)
      target_include_directories(${target} PRIVATE
        include tests src ${CUDAToolkit_INCLUDE_DIRS})
      target_compile_options(${target} PRIVATE
        -idirafter${KERAS_MP_CUBLASLT_INCLUDE})
      target_link_libraries(${target} PRIVATE keras_mp_warnings)
    endforeach()
    add_test(NAME gemm_cublaslt_test
      COMMAND gemm_cublaslt_test $<TARGET_FILE:fake_cublaslt>)
    set_tests_properties(gemm_cublaslt_test PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endif()
