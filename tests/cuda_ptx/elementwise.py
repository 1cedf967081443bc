"""The kernels of the product that work on single elements, executed from their PTX."""

import numpy as np
from cuda_ptx import kernels
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.products import Problem


def round_by_kernel(architecture, element, numbers):
    """RoundKernel on FP32 numbers: the bits of the element type."""
    memory = GlobalMemory()
    source, to = memory.put(numbers), memory.allocate(2 * numbers.size)
    launch(
        kernels.kernel_of(kernels.round_source(element), architecture, "RoundKernel"),
        (3, 1, 1),
        (256, 1, 1),
        np.uint64([source, to, numbers.size]).tobytes(),
        memory,
    )
    return memory.get(to, np.uint16, numbers.size)


def relu_by_kernel(architecture, matrices, infinity):
    """ReluKernel on FP16 or FP32 matrices, [batch, m, n]."""
    batch, m, n = matrices.shape
    memory = GlobalMemory()
    c = memory.put(matrices)
    bits = f"unsigned {'short' if matrices.itemsize == 2 else 'int'}"
    problem = Problem(c=c, m=m, n=n, ldc=n, stride_c=m * n)
    launch(
        kernels.kernel_of(kernels.relu_source(bits), architecture, "ReluKernel"),
        (-(-n // 32), 1, batch),
        (32, 8, 1),
        bytes(problem) + infinity.to_bytes(matrices.itemsize, "little"),
        memory,
    )
    return memory.get(c, matrices.dtype, matrices.size).reshape(matrices.shape)
