# The ops for the installed TensorFlow: the library that tf.load_op_library loads.

if(NOT KERAS_MP_TENSORFLOW_DIR OR NOT KERAS_MP_TENSORFLOW_VERSION)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  # Found without import, which would take seconds.
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/find_tensorflow.py
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "No TensorFlow for ${Python3_EXECUTABLE}. Install it, or "
      "configure with -DKERAS_MP_TENSORFLOW=OFF.")
  endif()
  list(GET found 0 KERAS_MP_TENSORFLOW_DIR)
  list(GET found 1 KERAS_MP_TENSORFLOW_VERSION)
endif()
message(STATUS
  "TensorFlow ${KERAS_MP_TENSORFLOW_VERSION} in ${KERAS_MP_TENSORFLOW_DIR}")

set(tensorflow_include ${KERAS_MP_TENSORFLOW_DIR}/include)
set(op_sources
  tensorflow/common/locked_variables.cc
  tensorflow/common/status.cc
  tensorflow/gemm/gemm_op.cc
  tensorflow/histogram/exponent_histogram_cpu.cc
  tensorflow/norm/norm_ops.cc
  tensorflow/pool/average_pool_ops.cc
  tensorflow/update/update_variables_op.cc)
set(xla_sources
  tensorflow/attention/attention_ops.cc
  tensorflow/conv/depthwise_conv_ops.cc
  tensorflow/gemm/gemm_op_xla.cc
  tensorflow/histogram/exponent_histogram_xla.cc
  tensorflow/logits/logit_statistics_ops.cc
  tensorflow/norm/batch_norm_xla.cc
  tensorflow/norm/row_norm_xla.cc
  tensorflow/norm/softmax_xla.cc
  tensorflow/norm/sum_xla.cc
  tensorflow/pool/average_pool_xla.cc
  tensorflow/update/update_ops.cc)
if(KERAS_MP_CUDA)
  list(APPEND op_sources tensorflow/gemm/gemm_op_gpu.cc)
endif()
add_library(keras_mp_ops MODULE
  ${op_sources} ${xla_sources}
  tensorflow/common/absl_log.cc tensorflow/common/build_info.cc)
# TensorFlow's headers take most of the time to compile. They are read once for all ops,
# and those of XLA, which take as long again, once for all lowerings.
set_target_properties(keras_mp_ops PROPERTIES
  PREFIX "" OUTPUT_NAME "_keras_mp_ops" UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
set_source_files_properties(${op_sources} PROPERTIES UNITY_GROUP tensorflow)
set_source_files_properties(${xla_sources} PROPERTIES UNITY_GROUP xla)
target_include_directories(keras_mp_ops PRIVATE tensorflow)
target_include_directories(keras_mp_ops SYSTEM PRIVATE
  ${tensorflow_include}
  ${tensorflow_include}/external/highwayhash
  ${tensorflow_include}/external/farmhash_archive/src)
# The same definitions as in TensorFlow's own wheels.
target_compile_definitions(keras_mp_ops PRIVATE
  _GLIBCXX_USE_CXX11_ABI=1
  EIGEN_MAX_ALIGN_BYTES=64)
target_link_libraries(keras_mp_ops PRIVATE keras_mp_kernels keras_mp_warnings)
if(KERAS_MP_CUDA)
  target_compile_definitions(keras_mp_ops PRIVATE KERAS_MP_HAS_CUDA)
  # The CUDA runtime that the kernels were compiled for. It comes before TensorFlow's
  # library, which has the same functions, and its symbols are not exported.
  target_link_libraries(keras_mp_ops PRIVATE
    keras_mp_gemm_cuda keras_mp_norm_cuda keras_mp_update_cuda CUDA::cudart_static)
  target_link_options(keras_mp_ops PRIVATE -Wl,--exclude-libs,ALL)
endif()
# The second has XLA's. TensorFlow has loaded both; from 2.22 on only a library that names
# them finds their symbols.
target_link_libraries(keras_mp_ops PRIVATE
  ${KERAS_MP_TENSORFLOW_DIR}/libtensorflow_framework.so.2
  ${KERAS_MP_TENSORFLOW_DIR}/libtensorflow_cc.so.2)
set(build "{\"tensorflow\": \"${KERAS_MP_TENSORFLOW_VERSION}\"")
set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
string(APPEND build ", \"compiler\": \"${compiler}\"")
if(KERAS_MP_CUDA)
  # As NVIDIA writes them: 7.5 for 75-real.
  list(TRANSFORM KERAS_MP_CUDA_ARCHITECTURES REPLACE
    "([0-9][af]?)(-real|-virtual)?$" ".\\1" OUTPUT_VARIABLE capabilities)
  list(JOIN capabilities " " capabilities)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" version "${CMAKE_CUDA_COMPILER_VERSION}")
  set(cuda "${capabilities} by CUDA ${version}")
endif()
string(APPEND build ", \"cuda\": \"${cuda}\"}")
set_source_files_properties(tensorflow/common/build_info.cc PROPERTIES
  COMPILE_DEFINITIONS "KERAS_MP_BUILD=R\"(${build})\"")
