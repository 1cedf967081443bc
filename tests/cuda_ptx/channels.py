"""Sums over rows or columns, and batch normalization, by the PTX of their kernels."""

import numpy as np
from cuda_ptx import kernels
from cuda_ptx import norm_arguments as arguments
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.products import element_bits, element_values

ROW_SUM = 2.0**-17  # the error of a sum over a row, relative to the sum of magnitudes
SUM = 2.0**-15  # that of a sum in two stages
SUMS = {"PlainTerm": 1, "SquareTerm": 1, "GradientTerm": 2}
WARP_SIZE = arguments.HELD * arguments.WARP  # the longest row of a warp


def rounded(found, expected, error, element):
    """The largest error, over `error` and one rounding to the 16-bit type."""
    digits, smallest = (11, -24) if element == "Half" else (8, -133)
    _, exponent = np.frexp(np.abs(expected) + error)
    bound = error + np.ldexp(0.5, np.maximum(exponent - digits, smallest))
    return float((np.abs(found - expected) / bound).max())


class Channels:
    """A tensor [outer, channels, inner] and the launches of cuda/norm for it.

    Args:
        shape: The three sizes. With an `inner` of 1 the channels are in columns.
        element: "Half" or "Bfloat16".
        architecture: Such as "sm_80".
        offset: Elements by which the tensors are misaligned.
        mutants: Kernels that replace the compiled ones, by name, or by name and
            template arguments.
    """

    def __init__(self, shape, element, architecture, offset=0, mutants=None):
        self.shape, self.element, self.architecture = shape, element, architecture
        self.memory = GlobalMemory()
        self._offset, self._mutants = offset, mutants or {}
        self._random = np.random.default_rng(0)

    def put(self, mean=0.0):
        """The address of a random tensor, and its values in float64."""
        numbers = self._random.standard_normal(self.shape, np.float32)
        bits = element_bits(numbers + np.float32(mean), self.element)
        values = element_values(bits, self.element).astype(np.float64)
        return self.memory.put(bits.ravel(), 2 * self._offset), values

    def put_channels(self, mean=0.0):
        """The address of a random FP32 number for each channel, and the numbers."""
        numbers = self._random.standard_normal(self.shape[1], np.float32)
        numbers = numbers * np.float32(0.25) + np.float32(mean)
        return self.memory.put(numbers), numbers.astype(np.float64)

    def sums(self, term, matrices, scales, divisor=1.0):
        """The sums of a term over each channel / divisor: address and numbers."""
        outer, channels, inner = self.shape
        if inner == 1:
            return self._finish(
                *column_sums(
                    self.memory, self.element, self.architecture, term,
                    (1, outer, channels), matrices, scales,
                    self._mutants.get("ColumnSumsKernel"),
                ),
                divisor,
            )  # fmt: skip
        parts = self._row_parts()
        count = SUMS[term] * outer * parts.parts * channels
        partials = self.memory.allocate(4 * count)
        self._run_rows("RowSumsKernel", (term, type(scales).__name__), scales,
                       matrices, partials)  # fmt: skip
        return self._finish(
            partials, (SUMS[term], 1, outer * parts.parts, channels), divisor
        )

    def compute(self, kind, matrices):
        """The numbers of a map, in float64."""
        outer, channels, inner = self.shape
        size = outer * channels * inner
        to = self.memory.allocate(2 * size, 2 * self._offset)
        name = type(kind).__name__
        if inner == 1:
            parts, blocks = arguments.column_parts(1, outer, channels)
            problem = arguments.in_columns(type(kind), parts, matrices, kind, to)
            self._launch("ColumnMapKernel", (self.element, name), blocks, problem)
        else:
            self._run_rows("RowMapKernel", (name,), kind, matrices, to)
        bits = self.memory.get(to, np.uint16, size)
        return element_values(bits, self.element).astype(np.float64).reshape(self.shape)

    def _row_parts(self):
        outer, channels, inner = self.shape
        parts = -(-inner // arguments.PART_SIZE)
        return arguments.RowParts(outer * channels, channels, inner, parts)

    def _run_rows(self, name, kinds, rest, matrices, to):
        parts = self._row_parts()
        teams, is_warp = parts.rows * parts.parts, parts.size <= WARP_SIZE
        problem = arguments.in_rows(type(rest), parts, matrices, rest, to)
        self._launch(
            name,
            (self.element, *kinds, str(arguments.WARP if is_warp else arguments.BLOCK)),
            -(-teams // arguments.WARPS) if is_warp else teams,
            problem,
        )

    def _launch(self, name, kinds, blocks, problem):
        mutant = self._mutants.get(name) or self._mutants.get((name, *kinds))
        kernel = mutant or kernels.instance_of(
            kernels.channel_source(self.element), self.architecture, name, *kinds
        )
        launch(
            kernel,
            (blocks, 1, 1),
            (arguments.BLOCK, 1, 1),
            bytes(problem),
            self.memory,
            shared_bytes=arguments.ROW_SHARED_BYTES,
        )

    def _finish(self, partials, shape, divisor):
        return finish(
            self.memory, self.architecture, partials, shape, divisor,
            self._mutants.get("FinishKernel"),
        )  # fmt: skip


def column_sums(
    memory, element, architecture, term, shape, matrices, scales, kernel=None
):
    """ColumnSumsKernel over the rows of [slices, rows, columns].

    Returns:
        The address of the partial sums, and their shape.
    """
    parts, blocks = arguments.column_parts(*shape)
    of_parts = (SUMS[term], parts.slices, parts.parts, parts.columns)
    partials = memory.allocate(4 * int(np.prod(of_parts)))
    kernel = kernel or kernels.instance_of(
        kernels.channel_source(element), architecture, "ColumnSumsKernel", element,
        term, type(scales).__name__,
    )  # fmt: skip
    problem = arguments.in_columns(type(scales), parts, matrices, scales, partials)
    launch(
        kernel,
        (blocks, 1, 1),
        (arguments.BLOCK, 1, 1),
        bytes(problem),
        memory,
        shared_bytes=arguments.COLUMN_SHARED_BYTES,
    )
    return partials, of_parts


def finish(memory, architecture, partials, shape, divisor=1.0, kernel=None):
    """FinishKernel for each of the sums: their addresses and numbers."""
    sums, slices, parts, columns = shape
    kernel = kernel or kernels.kernel_of(kernels.FINISH, architecture, "FinishKernel")
    results = []
    for s in range(sums):
        totals = memory.allocate(4 * slices * columns)
        at = partials + 4 * s * slices * parts * columns
        problem = arguments.Finish(slices, parts, columns, at, divisor, totals)
        launch(
            kernel,
            (slices * -(-columns // arguments.FINISH_COLUMNS), 1, 1),
            (arguments.BLOCK, 1, 1),
            bytes(problem),
            memory,
            shared_bytes=arguments.FINISH_SHARED_BYTES,
        )
        results.append((totals, memory.get(totals, np.float32, slices * columns)))
    return results


def sum_of_rows(
    memory, element, architecture, term, shape, matrices, scales, mutants=None
):
    """The sums over the rows of [slices, rows, columns], as FP32 arrays."""
    mutants = mutants or {}
    partials = column_sums(
        memory, element, architecture, term, shape, matrices, scales,
        mutants.get("ColumnSumsKernel"),
    )  # fmt: skip
    found = finish(memory, architecture, *partials, kernel=mutants.get("FinishKernel"))
    return [numbers for _, numbers in found]


def sum_excess(shape, element, architecture, offset=0, mutants=None):
    """KerasMp>Sum of [outer, count, inner]: the largest error over its bound."""
    outer, count, inner = shape
    if inner == 1:  # the rows of a matrix, each a channel
        problem = Channels((1, outer, count), element, architecture, offset, mutants)
        x, values = problem.put(mean=3)
        ((_, found),) = problem.sums("PlainTerm", (x, 0), arguments.NoScales())
        values = values.reshape(shape)
    else:
        problem = Channels(shape, element, architecture, offset, mutants)
        x, values = problem.put(mean=3)
        found = sum_of_rows(
            problem.memory, element, architecture, "PlainTerm", shape, (x, 0),
            arguments.NoScales(), mutants,
        )[0]  # fmt: skip
    bound = SUM * np.abs(values).sum(1)
    error = np.abs(found.reshape(outer, inner) - values.sum(1))
    return float((error / bound).max())


def batch_norm_excess(shape, element, architecture, offset=0, mutants=None):
    """Training and its gradients: the largest error over its bound, by what errs."""
    problem = Channels(shape, element, architecture, offset, mutants)
    epsilon, count = np.float32(1e-3), shape[0] * shape[2]
    x, x_values = problem.put(mean=3)
    grad_y, upstream = problem.put()
    gamma, gammas = problem.put_channels(mean=1)
    beta, betas = problem.put_channels()
    ((mean, means),) = problem.sums("PlainTerm", (x, 0), arguments.NoScales(), count)
    scales = arguments.ChannelScales(mean, 0, 0)
    ((variance, variances),) = problem.sums("SquareTerm", (x, 0), scales, count)
    normalize = arguments.NormalizeMap(mean, variance, gamma, beta, epsilon)
    y = problem.compute(normalize, (x, 0))
    scales = arguments.ChannelScales(mean, variance, epsilon)
    (at_beta, grad_beta), (at_gamma, grad_gamma) = problem.sums(
        "GradientTerm", (x, grad_y), scales
    )
    gradient = arguments.GradientMap(
        mean, variance, gamma, at_beta, at_gamma, epsilon, count
    )
    grad_x = problem.compute(gradient, (x, grad_y))

    # The bounds of custom_ops/tests/common/batch_norm_suite.h, given the statistics.
    def wide(numbers):
        return np.asarray(numbers, np.float64)[None, :, None]

    axes = (0, 2)
    of_mean = SUM * np.abs(x_values).mean(axes)
    exact_variance = np.square(x_values - x_values.mean(axes, keepdims=True)).mean(axes)
    of_variance = SUM * exact_variance + 2 * of_mean * np.sqrt(exact_variance)
    inverse = wide(1 / np.sqrt(variances.astype(np.float64) + epsilon))
    z = (x_values - wide(means)) * inverse
    product, magnitude = upstream * z, np.abs(upstream)
    scaled = wide(gammas) * z
    terms = wide(grad_beta) / count, z * wide(grad_gamma) / count
    factor = wide(gammas) * inverse
    size = magnitude + np.abs(terms[0]) + np.abs(terms[1])
    return {
        "mean": over(means - x_values.mean(axes), of_mean),
        "variance": over(variances - exact_variance, of_variance),
        "y": rounded(
            y,
            scaled + wide(betas),
            2.0**-21 * (np.abs(scaled) + np.abs(wide(betas))),
            element,
        ),
        "grad_beta": over(grad_beta - upstream.sum(axes), SUM * magnitude.sum(axes)),
        "grad_gamma": over(
            grad_gamma - product.sum(axes), 2 * SUM * np.abs(product).sum(axes)
        ),
        "grad_x": rounded(
            grad_x,
            factor * (upstream - terms[0] - terms[1]),
            2.0**-20 * np.abs(factor) * size,
            element,
        ),
    }


def over(errors, bounds):
    """The largest error over its bound."""
    return float((np.abs(errors) / bounds).max())
