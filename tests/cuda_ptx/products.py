"""A product by the PTX of its kernels, beside float64."""

import ctypes
import math
from dataclasses import dataclass

import numpy as np
from cuda_ptx import kernels
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.number_types import round_to_bfloat16, widen_bfloat16
from cuda_ptx.tensor_cores import MODELS

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.where(x <= 0, 0, x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * np.vectorize(math.erfc)(-x / np.sqrt(2.0)),
}


class Problem(ctypes.Structure):
    """cuda/gemm/problem.h."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("a", "b", "c", "bias", "alpha", "partial")
        ),
        ("partial_stride", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("lda", "ldb", "ldc")),
        *((name, ctypes.c_int64) for name in ("stride_a", "stride_b", "stride_c")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "splits", "k_per_split")),
        *((name, ctypes.c_int32) for name in ("align_a", "align_b")),
        ("paired_stores", ctypes.c_bool),
        ("activation", ctypes.c_int32),
        ("float_output", ctypes.c_bool),
        ("float_bias", ctypes.c_bool),
    )


@dataclass(frozen=True)
class Case:
    """A product. Rows are `gap` elements longer than they need to be, with NaN there.

    Arrays begin `offset` elements beyond an aligned address.
    """

    m: int
    n: int
    k: int
    gap: int = 0
    offset: int = 0
    batch: int = 1
    k_per_split: int | None = None
    float_output: bool = False
    float_bias: bool | None = None  # None: no bias
    alpha: float | None = None
    activation: str = "none"


def element_bits(x, element):
    """Numbers rounded to the element type, as bits."""
    if element == "Bfloat16":
        return round_to_bfloat16(x)
    return x.astype(np.float16).view(np.uint16)


def element_values(bits, element):
    """The FP32 numbers with these bits."""
    if element == "Bfloat16":
        return widen_bfloat16(bits)
    return bits.view(np.float16).astype(np.float32)


class Product:
    """The arrays of a case in the memory of a device, and their launches."""

    def __init__(self, case, element="Half", contiguous_k=(True, False), data=None):
        self.case, self.element, self.contiguous_k = case, element, contiguous_k
        self.memory = GlobalMemory()
        self._random = np.random.default_rng(0)
        p = self.problem = Problem(m=case.m, n=case.n, k=case.k)
        a, b = data or (
            self._uniform(case.batch, case.m, case.k),
            self._uniform(case.batch, case.k, case.n),
        )
        p.a, p.lda, p.stride_a, p.align_a, self._a = self._put(a, not contiguous_k[0])
        p.b, p.ldb, p.stride_b, p.align_b, self._b = self._put(b, contiguous_k[1])
        self._put_result()
        self._put_epilogue()

    def run(self, shape, architecture, tensor_cores=None, kernel=None):
        """Returns C, [batch, m, n], in float64. `kernel` replaces the compiled one."""
        tile = kernels.SHAPES[shape]
        p, case = self.problem, self.case
        cuda = kernels.product_source(shape, self.element, *self.contiguous_k)
        kernel = kernel or kernels.kernel_of(cuda, architecture, "maKernel")
        tiles = -(-case.m // tile.m) * -(-case.n // tile.n)
        launch(
            kernel,
            (tiles, p.splits, case.batch),
            (tile.threads, 1, 1),
            bytes(p),
            self.memory,
            shared_bytes=tile.shared_bytes(*self.contiguous_k),
            tensor_cores=tensor_cores or MODELS[architecture],
        )
        if p.splits > 1:
            self.reduce(architecture)
        return self.result()

    def error_over_bound(self, result, roundings):
        """The largest error, over the bound of custom_ops/tests/cuda/gemm_tolerance.h.

        `roundings` is the error of the sum in units of k 2^-24 sum |a| |b|.
        """
        case = self.case
        alpha = 1.0 if case.alpha is None else float(np.float32(case.alpha))
        product = alpha * (self._a @ self._b)
        magnitude = abs(alpha) * (np.abs(self._a) @ np.abs(self._b))
        exact = ACTIVATIONS[case.activation](product + self._bias)
        # No activation has a derivative above 1.13.
        error = 1.13 * roundings * case.k * magnitude * 2.0**-24 + 2.0**-22 * (
            np.abs(product) + np.abs(self._bias) + np.abs(exact)
        )
        digits, smallest = (11, -24) if self.element == "Half" else (8, -133)
        if case.float_output:
            digits, smallest = 24, -149
        _, exponent = np.frexp(np.abs(exact) + error)
        bound = error + np.ldexp(0.5, np.maximum(exponent - digits, smallest))
        return float((np.abs(result - exact) / bound).max())

    def _uniform(self, *shape):
        return self._random.uniform(-1, 1, shape)

    def _put(self, matrix, transposed):
        """Stores matrices. Returns address, strides, alignment and values."""
        gap, offset = self.case.gap, self.case.offset
        stored = matrix.swapaxes(1, 2) if transposed else matrix
        batch, rows, columns = stored.shape
        full = np.full((batch, rows, columns + gap), np.nan, np.float32)
        full[:, :, :columns] = stored
        bits = element_bits(full, self.element)
        values = element_values(bits, self.element)[:, :, :columns].astype(np.float64)
        # The array ends with its last element, not with the gap behind it.
        address = self.memory.put(bits.ravel()[: bits.size - gap], 2 * offset)
        stride = rows * (columns + gap)
        strides = (columns + gap) | (stride if batch > 1 else 0)
        # MatrixAlignment of cuda/gemm/plan.h.
        align = math.gcd(16, address, 2 * columns, 2 * strides)
        values = values.swapaxes(1, 2) if transposed else values
        return address, columns + gap, stride, align, values

    def _put_result(self):
        p, case = self.problem, self.case
        p.ldc = case.n + case.gap
        p.stride_c = case.m * p.ldc
        p.float_output = case.float_output
        size = 4 if case.float_output else 2
        self._count = case.batch * p.stride_c - case.gap
        p.c = self.memory.allocate(self._count * size, case.offset * size)
        strides = p.ldc | (p.stride_c if case.batch > 1 else 0)
        p.paired_stores = p.c % (2 * size) == 0 and strides % 2 == 0

    def _put_epilogue(self):
        p, case = self.problem, self.case
        p.activation = list(ACTIVATIONS).index(case.activation)
        p.k_per_split = case.k_per_split or 1 << 30
        p.splits = -(-case.k // p.k_per_split)
        p.partial_stride = case.batch * case.m * case.n
        if p.splits > 1:
            p.partial = self.memory.allocate(4 * p.splits * p.partial_stride)
        if case.alpha is not None:
            p.alpha = self.memory.put(np.float32([case.alpha]))
        self._bias = np.zeros(case.n)
        if case.float_bias is not None:
            bias = self._uniform(case.n).astype(np.float32)
            bits = element_bits(bias, self.element)
            p.float_bias = case.float_bias
            p.bias = self.memory.put(bias if case.float_bias else bits)
            values = bias if case.float_bias else element_values(bits, self.element)
            self._bias = values.astype(np.float64)

    def reduce(self, architecture):
        """Adds up the parts of the sums, and applies the epilogue."""
        case = self.case
        source = kernels.reduce_source(architecture, self.element)
        launch(
            kernels.kernel_of(source, architecture, "ReduceKernel"),
            (-(-case.n // 64), -(-case.m // 8), case.batch),
            (32, 8, 1),
            bytes(self.problem),
            self.memory,
        )

    def result(self):
        """C, [batch, m, n], in float64."""
        case = self.case
        dtype = np.float32 if case.float_output else np.uint16
        numbers = self.memory.get(self.problem.c, dtype, self._count)
        if not case.float_output:
            numbers = element_values(numbers, self.element)
        full = np.full(case.batch * self.problem.stride_c, np.nan)
        full[: self._count] = numbers
        full = full.reshape(case.batch, case.m, self.problem.ldc)
        assert np.isnan(full[:, :, case.n :]).all(), (
            "the gaps between rows were written"
        )
        return full[:, :, : case.n]
