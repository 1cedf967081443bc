// Marks functions that run on the host and on a CUDA device.

#ifndef KERAS_MP_SRC_COMMON_HOST_DEVICE_H_
#define KERAS_MP_SRC_COMMON_HOST_DEVICE_H_

#ifdef __CUDACC__
#define KERAS_MP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KERAS_MP_HOST_DEVICE inline
#endif

#endif  // KERAS_MP_SRC_COMMON_HOST_DEVICE_H_
