"""Row normalization and softmax by the PTX of their kernels, beside float64."""

from dataclasses import dataclass

import numpy as np
from cuda_ptx import kernels
from cuda_ptx import norm_arguments as arguments
from cuda_ptx.channels import ROW_SUM, rounded, sum_of_rows
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.products import element_bits, element_values

EXP = 2.0**-19  # the relative error of a probability before it is rounded


@dataclass(frozen=True)
class Rows:
    """A problem [rows, size]. Arrays begin `offset` elements beyond an aligned address.

    `kind`: of arguments.KINDS. `plain`: without gamma and beta.
    """

    rows: int
    size: int
    offset: int = 0
    kind: str = "layer"
    plain: bool = False


def team_of(size):
    """The template arguments of the kernels for rows of a size, as in LaunchRows."""
    if size <= arguments.HELD * arguments.WARP:
        return kernels.TEAMS[0]
    return kernels.TEAMS[1 + (size > arguments.HELD * arguments.BLOCK)]


class RowProblem:
    """The arrays of a problem in the memory of a device."""

    def __init__(self, case, element, architecture, spread=1.0, kernel=None):
        self.case, self.element, self.architecture = case, element, architecture
        self.memory = GlobalMemory()
        self._random = np.random.default_rng(0)
        self._kernel = kernel
        self._spread = spread

    def normal(self, *shape, mean=0.0, deviation=1.0):
        """Random numbers, FP32."""
        numbers = self._random.standard_normal(shape, np.float32)
        return numbers * np.float32(deviation) + np.float32(mean)

    def put(self, numbers):
        """The address of 16-bit numbers, and their values in float64."""
        bits = element_bits(numbers, self.element)
        values = element_values(bits, self.element).astype(np.float64)
        return self.memory.put(bits.ravel(), 2 * self.case.offset), values

    def put_floats(self, numbers):
        """The address of FP32 numbers, and their values in float64."""
        at = self.memory.put(numbers.ravel(), 4 * self.case.offset)
        return at, numbers.astype(np.float64)

    def allocate(self, itemsize=2):
        """The address of a result [rows, size]."""
        case = self.case
        return self.memory.allocate(
            itemsize * case.rows * case.size, itemsize * case.offset
        )

    def run(self, source, name, *formats, problem):
        """Launches a kernel for the rows."""
        case = self.case
        team = team_of(case.size)
        kernel = self._kernel or kernels.instance_of(
            source(self.element), self.architecture, name, *formats, *team
        )
        is_warp = team[0] == str(arguments.WARP)
        blocks = -(-case.rows // arguments.WARPS) if is_warp else case.rows
        launch(
            kernel,
            (blocks, 1, 1),
            (arguments.BLOCK, 1, 1),
            bytes(problem),
            self.memory,
            shared_bytes=arguments.ROW_SHARED_BYTES,
        )

    def result(self, address):
        """16-bit numbers [rows, size] in float64."""
        shape = self.case.rows, self.case.size
        bits = self.memory.get(address, np.uint16, shape[0] * shape[1])
        return element_values(bits, self.element).astype(np.float64).reshape(shape)

    def excess(self, found, expected, error):
        """The largest error, over `error` and the rounding to 16 bits."""
        return rounded(found, expected, error, self.element)


class RowNormProblem(RowProblem):
    """Row normalization and its gradients."""

    def __init__(self, *problem, **options):
        super().__init__(*problem, **options)
        case = self.case
        self.epsilon = 1e-12 if case.kind == "unit_length" else 1e-3
        self.x, self._x = self.put(self.normal(case.rows, case.size, mean=3))
        self.gamma, self._gamma = self.put_floats(
            self.normal(case.size, mean=1, deviation=0.25)
        )
        self.beta, self._beta = self.put_floats(self.normal(case.size))
        if case.plain:
            self.gamma = self.beta = 0
            self._gamma, self._beta = np.ones(case.size), np.zeros(case.size)
        self._find_scales()

    def forward(self):
        """The largest error over its bound, of y."""
        case, y = self.case, self.allocate()
        problem = arguments.RowNorm(
            case.rows, case.size, arguments.TYPES.index(self.element),
            arguments.KINDS.index(case.kind), self.epsilon, self.x, self.gamma,
            self.beta, y,
        )  # fmt: skip
        self.run(
            kernels.row_norm_source, "RowNormKernel", self.element, problem=problem
        )
        scaled = self._gamma * self._z
        error = np.abs(self._gamma) * self._of_z
        error += 2.0**-22 * (np.abs(scaled) + np.abs(self._beta))
        return self.excess(self.result(y), scaled + self._beta, error)

    def backward(self):
        """The largest errors over their bounds: of grad_x, grad_gamma and grad_beta."""
        case = self.case
        grad_y, upstream = self.put(self.normal(case.rows, case.size))
        grad_x = self.allocate()
        scales = self.memory.allocate(8 * case.rows)
        problem = arguments.RowNormGradient(
            case.rows, case.size, arguments.TYPES.index(self.element),
            arguments.KINDS.index(case.kind), self.epsilon, self.x, grad_y, self.gamma,
            grad_x, 0, 0, scales,
        )  # fmt: skip
        self.run(
            kernels.row_norm_source,
            "RowNormGradientKernel",
            self.element,
            problem=problem,
        )
        return [
            self._excess_of_grad_x(self.result(grad_x), upstream),
            *self._sums_over_rows(grad_y, upstream, scales),
        ]

    def _find_scales(self):
        """z and the bound of its error, as custom_ops/tests/common/row_norm_suite.h."""
        case, x = self.case, self._x
        self._count = 1 if case.kind == "unit_length" else case.size
        mean = of_mean = np.zeros((case.rows, 1))
        if case.kind == "layer":
            mean = x.mean(1, keepdims=True)
            of_mean = ROW_SUM * np.abs(x).mean(1, keepdims=True)
        variance = np.square(x - mean).sum(1, keepdims=True) / self._count
        if case.kind != "unit_length":
            variance += np.float32(self.epsilon)
        self._inverse = 1 / np.sqrt(variance)
        of_variance = ROW_SUM * variance + 2 * of_mean * np.sqrt(variance) + of_mean**2
        self._relative = of_variance / (2 * variance) + 2.0**-22
        self._z = (x - mean) * self._inverse
        self._of_z = np.abs(self._z) * (self._relative + 2.0**-22)
        self._of_z += of_mean * self._inverse

    def _excess_of_grad_x(self, found, upstream):
        centered = self.case.kind == "layer"
        h, z, count = upstream * self._gamma, self._z, self._count
        product = (h * z).sum(1, keepdims=True)
        of_product = (np.abs(h) * self._of_z).sum(1, keepdims=True)
        of_product += ROW_SUM * np.abs(h * z).sum(1, keepdims=True)
        mean = h.mean(1, keepdims=True) if centered else 0.0
        of_mean = ROW_SUM * np.abs(h).mean(1, keepdims=True) if centered else 0.0
        expected = self._inverse * (h - mean - z * product / count)
        terms = np.abs(h) + np.abs(mean) + np.abs(z * product) / count
        error = (self._relative + 2.0**-21) * terms + of_mean
        error += (self._of_z * np.abs(product) + np.abs(z) * of_product) / count
        return self.excess(found, expected, self._inverse * error)

    def _sums_over_rows(self, grad_y, upstream, scales):
        """The gradients of beta and gamma, by ColumnSumsKernel and FinishKernel."""
        found = sum_of_rows(
            self.memory, self.element, self.architecture, "GradientTerm",
            (1, self.case.rows, self.case.size), (self.x, grad_y),
            arguments.RowScales(scales),
        )  # fmt: skip
        magnitude = np.abs(upstream)
        bounds = (
            2.0**-15 * magnitude.sum(0),
            (magnitude * self._of_z + 2.0**-15 * np.abs(upstream * self._z)).sum(0),
        )
        expected = upstream.sum(0), (upstream * self._z).sum(0)
        return [
            float((np.abs(f - e) / b).max())
            for f, e, b in zip(found, expected, bounds, strict=True)
        ]


class SoftmaxProblem(RowProblem):
    """Softmax and its gradients."""

    def forward(self, is_x_float=False):
        """The largest error over its bound, of y."""
        case = self.case
        numbers = self.normal(case.rows, case.size, deviation=self._spread)
        x, values = self.put_floats(numbers) if is_x_float else self.put(numbers)
        y = self.allocate()
        problem = arguments.Softmax(
            case.rows, case.size, arguments.TYPES.index(self.element), is_x_float, x, y
        )
        self.run(
            kernels.softmax_source,
            "SoftmaxKernel",
            "Float" if is_x_float else self.element,
            problem=problem,
        )
        p = probabilities(values)
        return self.excess(self.result(y), p, EXP * p)

    def backward(self):
        """The largest error over its bound, of grad_x."""
        case = self.case
        x, values = self.put(self.normal(case.rows, case.size, deviation=self._spread))
        grad_y, upstream = self.put(self.normal(case.rows, case.size))
        grad_x = self.allocate()
        problem = arguments.SoftmaxGradient(
            case.rows, case.size, arguments.TYPES.index(self.element), x, grad_y, grad_x
        )
        self.run(
            kernels.softmax_source,
            "SoftmaxGradientKernel",
            self.element,
            problem=problem,
        )
        p = probabilities(values)
        mean = (p * upstream).sum(1, keepdims=True)
        magnitude = (p * np.abs(upstream)).sum(1, keepdims=True)
        error = 2 * EXP * p * (np.abs(upstream) + magnitude)
        return self.excess(self.result(grad_x), p * (upstream - mean), error)

    def backward_of_float(self):
        """The largest error over its bound, of the FP32 gradient from y."""
        case = self.case
        y, values = self.put(
            probabilities(self.normal(case.rows, case.size)).astype(np.float32)
        )
        grad_y, upstream = self.put(self.normal(case.rows, case.size))
        grad_x = self.allocate(4)
        problem = arguments.SoftmaxGradient(
            case.rows, case.size, arguments.TYPES.index(self.element), y, grad_y, grad_x
        )
        self.run(
            kernels.softmax_source,
            "FloatSoftmaxGradientKernel",
            self.element,
            problem=problem,
        )
        found = self.memory.get(grad_x, np.float32, case.rows * case.size)
        mean = (values * upstream).sum(1, keepdims=True)
        magnitude = np.abs(values * upstream).sum(1, keepdims=True)
        bound = EXP * values * (np.abs(upstream) + magnitude) + 2.0**-149
        expected = values * (upstream - mean)
        return float((np.abs(found.reshape(expected.shape) - expected) / bound).max())


def probabilities(x):
    """The softmax of each row."""
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
