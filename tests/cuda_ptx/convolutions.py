"""A depthwise convolution and its gradients by the PTX of their kernels."""

import itertools
from dataclasses import dataclass

import numpy as np
from cuda_ptx import kernels
from cuda_ptx import norm_arguments as arguments
from cuda_ptx.channels import SUM, finish, over, rounded
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.products import element_bits, element_values


@dataclass(frozen=True)
class Window:
    """What Convolved of keras_mp/depthwise_conv.h is made of, in one dimension."""

    size: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    is_same: bool = True

    @property
    def dimension(self):
        """ConvolvedDimension."""
        reach = (self.kernel - 1) * self.dilation + 1
        if self.is_same:
            result = -(-self.size // self.stride)
            inside = self.size - (result - 1) * self.stride
            before = max(0, reach - inside) // 2
        else:
            result, before = max(0, (self.size - reach) // self.stride + 1), 0
        return arguments.Dimension(
            self.size, result, self.kernel, self.stride, self.dilation, before
        )


class Convolution:
    """The arrays of a problem in the memory of a device, and float64 beside them."""

    def __init__(
        self, batch, channels, windows, element, architecture, float_kernel=True,
        mutants=None,
    ):  # fmt: skip
        self.element, self.architecture = element, architecture
        self.memory, self._mutants = GlobalMemory(), mutants or {}
        self._random = np.random.default_rng(0)
        self.rows, self.columns = (window.dimension for window in windows)
        number = arguments.TYPES.index(element)
        self.conv = arguments.DepthwiseConv(
            batch, channels, (self.rows, self.columns), number,
            arguments.TYPES.index("Float") if float_kernel else number,
        )  # fmt: skip
        self.x, self._x = self._put(batch, self.rows.size, self.columns.size, channels)
        self.grad_y, self._grad_y = self._put(
            batch, self.rows.result, self.columns.result, channels
        )
        shape = self.rows.kernel, self.columns.kernel, channels
        weights = self._random.standard_normal(shape, np.float32)
        bits = element_bits(weights, element)
        self._weights = element_values(bits, element).astype(np.float64)
        self.kernel = self.memory.put(weights if float_kernel else bits)

    def y_excess(self, to_type="Float"):
        """The largest error of y over its bound."""
        bias = self._random.standard_normal(self.conv.channels, np.float32)
        expected, magnitude = (np.zeros(self._grad_y.shape) for _ in range(2))
        expected += bias
        magnitude += np.abs(bias)
        for of_x, of_y, weight in self._products():
            product = self._x[of_x] * self._weights[weight]
            expected[of_y] += product
            magnitude[of_y] += np.abs(product)
        return self._run(
            "DepthwiseConvKernel", self.x, self.memory.put(bias), to_type, expected,
            magnitude,
        )  # fmt: skip

    def grad_x_excess(self):
        """The largest error of grad_x over its bound."""
        expected, magnitude = (np.zeros(self._x.shape) for _ in range(2))
        for of_x, of_y, weight in self._products():
            product = self._grad_y[of_y] * self._weights[weight]
            expected[of_x] += product
            magnitude[of_x] += np.abs(product)
        return self._run(
            "DepthwiseConvGradXKernel",
            self.grad_y,
            0,
            self.element,
            expected,
            magnitude,
        )

    def grad_kernel_excess(self):
        """The largest error of the gradient of the kernel over its bound."""
        expected, magnitude = (np.zeros(self._weights.shape) for _ in range(2))
        for of_x, of_y, weight in self._products():
            product = self._x[of_x] * self._grad_y[of_y]
            expected[weight] += product.sum((0,))
            magnitude[weight] += np.abs(product).sum((0,))
        taps = self.rows.kernel * self.columns.kernel
        parts, blocks = arguments.column_parts(
            taps, self.conv.batch * self.rows.result, self.conv.channels
        )
        partials = self.memory.allocate(4 * taps * parts.parts * parts.columns)
        problem = arguments.GradKernelArguments(
            self.conv, parts, self.x, self.grad_y, partials
        )
        self._launch("DepthwiseConvGradKernelKernel", blocks, problem,
                     arguments.COLUMN_SHARED_BYTES)  # fmt: skip
        shape = (1, taps, parts.parts, parts.columns)
        ((_, found),) = finish(self.memory, self.architecture, partials, shape)
        errors = found.reshape(expected.shape) - expected
        return over(errors, SUM * magnitude + 2.0**-149)

    def _put(self, *shape):
        numbers = self._random.standard_normal(shape, np.float32)
        bits = element_bits(numbers, self.element)
        values = element_values(bits, self.element).astype(np.float64)
        return self.memory.put(bits), values

    def _products(self):
        """The indices of each product: of x, of y and of the kernel."""

        def positions(d, k):
            for o in range(d.result):
                at = o * d.stride - d.before + k * d.dilation
                if 0 <= at < d.size:
                    yield at, o

        for i, j in itertools.product(
            range(self.rows.kernel), range(self.columns.kernel)
        ):
            for (a, o), (b, p) in itertools.product(
                positions(self.rows, i), positions(self.columns, j)
            ):
                yield (slice(None), a, b), (slice(None), o, p), (i, j)

    def _run(self, name, source, bias, to_type, expected, magnitude):
        """Launches a thread for each element of the result, and compares it."""
        size = 4 if to_type == "Float" else 2
        to = self.memory.allocate(size * expected.size)
        problem = arguments.DepthwiseConvArguments(
            self.conv, source, self.kernel, bias, arguments.TYPES.index("Float"), to,
            arguments.TYPES.index(to_type),
        )  # fmt: skip
        self._launch(name, -(-expected.size // arguments.BLOCK), problem, 0)
        error = (self.rows.kernel * self.columns.kernel + 1) * 2.0**-24 * magnitude
        if to_type == "Float":
            found = self.memory.get(to, np.float32, expected.size)
            return over(found.reshape(expected.shape) - expected, error + 2.0**-149)
        bits = self.memory.get(to, np.uint16, expected.size)
        found = element_values(bits, self.element).reshape(expected.shape)
        return rounded(found, expected, error, self.element)

    def _launch(self, name, blocks, problem, shared_bytes):
        kernel = self._mutants.get(name) or kernels.instance_of(
            kernels.conv_source(self.element), self.architecture, name, self.element
        )
        launch(
            kernel,
            (blocks, 1, 1),
            (arguments.BLOCK, 1, 1),
            bytes(problem),
            self.memory,
            shared_bytes=shared_bytes,
        )
