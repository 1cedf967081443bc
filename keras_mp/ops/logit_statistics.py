"""What a cross entropy needs of the logits of a linear layer, in blocks of words.

The logits `z = cap(inputs @ kernel + bias)` are never all in memory. One pass over
words finds a few numbers for each row; the backward pass computes each block of logits
again. On a CPU native kernels do this, elsewhere and in float64 TensorFlow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from keras_mp.dtypes import is_half
from keras_mp.ops.gemm import fp16_gemm
from keras_mp.ops.gradients import defer_until_upstream, vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_cpu_kernels
from keras_mp.ops.reductions import accumulator_dtype

# Words of a block. The kernel of a block is cast, and the block of logits is FP32.
BLOCK = 2048
# FP16 gradients of logits are multiplied by a power of two that brings the largest
# upstream gradient to 2^14: 2^-38 of it is still not rounded to 0.
_LARGEST = 14.0
_KERNEL_DTYPES = (tf.float16, tf.bfloat16, tf.float32)


class Statistics(NamedTuple):
    """FP32 numbers of each row; `argmax` is int32.

    Args:
        logsumexp: `log(sum over v of exp(z[v]))`.
        target: `sum over v of targets[v] * z[v]`, the logit of the label.
        total: `sum over v of z[v]`.
        argmax: the first v with the largest `z[v]`.
    """

    logsumexp: Any
    target: Any
    total: Any
    argmax: Any


@dataclass(frozen=True)
class Head:
    """A linear layer with logits as outputs.

    Args:
        transpose: whether the kernel is `[words, size]`, as an embedding is.
        soft_cap: `z = soft_cap * tanh(z / soft_cap)`; None for none.
    """

    transpose: bool
    soft_cap: float | None

    def statistics(
        self, inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, targets: tf.Tensor
    ) -> Statistics:
        """Returns the statistics of each row, with their gradients.

        Args:
            inputs: `[rows, size]`.
            kernel: `[size, words]`, or transposed; its number of words is known. It is
                cast to the dtype of `inputs`, and its gradient is not.
            bias: `[words]`, or `[0]` for none.
            targets: int32 labels `[rows]` from 0 to words - 1, or a weight for each
                word, `[rows, words]`, which gets no gradient.
        """

        @tf.custom_gradient
        def compute(
            inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
        ) -> tuple[Statistics, Any]:
            given = self._computation(inputs)(self, targets, inputs, kernel, bias)
            found = given.forward()

            @defer_until_upstream
            def gradient(*upstream: tf.Tensor) -> Any:
                return self._slopes(
                    inputs, kernel, bias, targets, found.logsumexp, *upstream[:3]
                )

            return found, gradient

        return Statistics(*compute(inputs, kernel, bias))

    def _slopes(
        self,
        inputs: tf.Tensor,
        kernel: tf.Tensor,
        bias: tf.Tensor,
        targets: tf.Tensor,
        logsumexp: tf.Tensor,
        *upstream: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Returns the gradients of inputs, kernel and bias.

        A second tape differentiates the formula with all logits in memory.
        """

        @tf.custom_gradient
        def compute(*tensors: tf.Tensor) -> tuple[Any, Any]:
            given = self._computation(inputs)(self, targets, *tensors[:3])
            slopes = given.backward(logsumexp, *tensors[3:])

            def gradient(*of_slopes: tf.Tensor) -> Any:
                def whole(*tensors: tf.Tensor) -> tuple[Any, ...]:
                    of_head = tensors[:3]
                    formula = _Blocks(self, targets, *of_head).whole
                    return tuple(vjp(formula, of_head, tensors[3:]))

                return vjp(whole, tensors, of_slopes)

            return slopes, gradient

        return compute(inputs, kernel, bias, *upstream)

    def _computation(self, inputs: tf.Tensor) -> "type[_Kernels] | type[_Blocks]":
        has_kernels = inputs.dtype in _KERNEL_DTYPES and has_cpu_kernels()
        return _Kernels if has_kernels else _Blocks


@dataclass(frozen=True)
class _Computation:
    """The arguments of `Head.statistics`, and their head."""

    head: Head
    targets: tf.Tensor
    inputs: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor


class _Kernels(_Computation):
    """The native kernels for one set of tensors."""

    def forward(self) -> Statistics:
        run = native.library().keras_mp_logit_statistics
        return Statistics(*run(**self._arguments()))

    def backward(
        self,
        logsumexp: tf.Tensor,
        of_logsumexp: tf.Tensor,
        of_target: tf.Tensor,
        of_total: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        run = native.library().keras_mp_logit_statistics_gradient
        of_inputs, of_kernel, of_bias = run(
            **self._arguments(),
            logsumexp=logsumexp,
            grad_logsumexp=of_logsumexp,
            grad_target=of_target,
            grad_total=of_total,
        )
        if not of_bias:
            return of_inputs, of_kernel, tf.zeros_like(self.bias)
        return of_inputs, of_kernel, tf.cast(of_bias[0], self.bias.dtype)

    def _arguments(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "kernel": self.kernel,
            "targets": self.targets,
            "bias": [tf.cast(self.bias, tf.float32)] if self.bias.shape[0] else [],
            "transpose": self.head.transpose,
            "soft_cap": self.head.soft_cap or 0.0,
        }


class _Blocks(_Computation):
    """The formulas in TensorFlow for one set of tensors."""

    @property
    def words(self) -> int:
        return int(self.kernel.shape[0 if self.head.transpose else 1])

    @property
    def dtype(self) -> tf.DType:
        return accumulator_dtype(self.inputs)

    def forward(self) -> Statistics:
        rows = tf.shape(self.inputs)[0]

        def step(start: Any, size: int, *before: tf.Tensor) -> tuple[tf.Tensor, ...]:
            maximum, exponentials, target, total, argmax = before
            z = self._logits(start, size)
            of_block = tf.reduce_max(z, 1)
            here = start + tf.argmax(z, 1, output_type=tf.int32)
            argmax = tf.where(of_block > maximum, here, argmax)
            largest = tf.maximum(of_block, maximum)
            # Without a logit above -inf the sum is 0, not NaN.
            shift = tf.where(tf.equal(largest, -float("inf")), zeros, largest)
            exponentials *= tf.exp(maximum - shift)
            exponentials += tf.reduce_sum(tf.exp(z - shift[:, tf.newaxis]), 1)
            of_targets = self._of_targets(start, size)
            target += tf.reduce_sum(_times_zero_is_zero(of_targets, z), 1)
            return largest, exponentials, target, total + tf.reduce_sum(z, 1), argmax

        zeros = tf.zeros([rows], self.dtype)
        lowest = zeros - float("inf")
        start = (lowest, zeros, zeros, zeros, tf.zeros([rows], tf.int32))
        maximum, exponentials, target, total, argmax = self._over_blocks(step, start)
        return Statistics(maximum + tf.math.log(exponentials), target, total, argmax)

    def backward(
        self,
        logsumexp: tf.Tensor,
        of_logsumexp: tf.Tensor,
        of_target: tf.Tensor,
        of_total: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        inputs, transpose = self.inputs, self.head.transpose
        scale = self._scale(of_logsumexp, of_target, of_total)

        def step(start: Any, size: int, *before: tf.Tensor) -> tuple[tf.Tensor, ...]:
            of_inputs, of_kernel, of_bias = before
            z = self._logits(start, size)
            p = tf.exp(z - logsumexp[:, tf.newaxis])
            slope = of_logsumexp[:, tf.newaxis] * p + of_total[:, tf.newaxis]
            slope += of_target[:, tf.newaxis] * self._of_targets(start, size)
            if self.head.soft_cap is not None:
                slope *= 1.0 - tf.square(z / self.head.soft_cap)
            rounded = tf.cast(slope * scale, inputs.dtype)
            block = self._kernel(start, size)
            of_inputs += (
                self._product(rounded, block, transpose_b=not transpose) / scale
            )
            # Rows of words, which can be written in place.
            words = self._product(rounded, inputs, transpose_a=True) / scale
            at = (start + tf.range(size))[:, tf.newaxis]
            words = tf.cast(words, of_kernel.dtype)
            of_kernel = tf.tensor_scatter_nd_update(of_kernel, at, words)
            if self.bias.shape[0]:
                sums = tf.cast(tf.reduce_sum(slope, 0), of_bias.dtype)
                of_bias = tf.tensor_scatter_nd_update(of_bias, at, sums)
            return of_inputs, of_kernel, of_bias

        start = (
            tf.zeros(tf.shape(inputs), self.dtype),
            tf.zeros([self.words, tf.shape(inputs)[1]], self.kernel.dtype),
            tf.zeros_like(self.bias),
        )
        of_inputs, of_kernel, of_bias = self._over_blocks(step, start)
        if not transpose:
            of_kernel = tf.transpose(of_kernel)
        of_kernel = tf.ensure_shape(of_kernel, self.kernel.shape)
        return tf.cast(of_inputs, inputs.dtype), of_kernel, of_bias

    def whole(self, *tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the first three statistics by all logits, for second derivatives."""
        blocks = _Blocks(self.head, self.targets, *tensors)
        z = blocks._logits(0, self.words)
        target = tf.reduce_sum(blocks._of_targets(0, self.words) * z, 1)
        return tf.reduce_logsumexp(z, 1), target, tf.reduce_sum(z, 1)

    def _over_blocks(
        self, step: Callable[..., tuple[tf.Tensor, ...]], start: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, ...]:
        """Calls `step(first word, words, *results before)` for each block."""
        blocks, rest = divmod(self.words, BLOCK)
        results = start
        if blocks:
            _, *results = tf.while_loop(
                lambda i, *_: i < blocks,
                lambda i, *before: (i + 1, *step(i * BLOCK, BLOCK, *before)),
                (tf.constant(0), *start),
                parallel_iterations=1,
                maximum_iterations=blocks,
            )
        return step(blocks * BLOCK, rest, *results) if rest else tuple(results)

    def _logits(self, start: Any, size: int) -> tf.Tensor:
        block = self._kernel(start, size)
        z = self._product(self.inputs, block, transpose_b=self.head.transpose)
        if self.bias.shape[0]:
            z += tf.cast(tf.slice(self.bias, [start], [size]), self.dtype)
        cap = self.head.soft_cap
        return z if cap is None else cap * tf.tanh(z / cap)

    def _kernel(self, start: Any, size: int) -> tf.Tensor:
        if self.head.transpose:
            block = tf.slice(
                self.kernel, [start, 0], [size, self.kernel.shape[1] or -1]
            )
        else:
            block = tf.slice(
                self.kernel, [0, start], [self.kernel.shape[0] or -1, size]
            )
        return tf.cast(block, self.inputs.dtype)

    def _of_targets(self, start: Any, size: int) -> tf.Tensor:
        if self.targets.shape.rank == 2:
            rows = tf.shape(self.targets)[0]
            block = tf.slice(self.targets, [0, start], [rows, size])
            return tf.cast(block, self.dtype)
        words = start + tf.range(size)
        return tf.cast(self.targets[:, tf.newaxis] == words, self.dtype)

    def _product(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        transpose_a: bool = False,
        transpose_b: bool = False,
    ) -> tf.Tensor:
        if is_half(a.dtype.name):
            return fp16_gemm(a, b, transpose_a, transpose_b, output_dtype="float32")
        return tf.matmul(a, b, transpose_a, transpose_b)

    def _scale(self, *upstream: tf.Tensor) -> tf.Tensor:
        if self.inputs.dtype != tf.float16:
            return tf.ones([], self.dtype)
        sizes = tf.add_n([tf.abs(x) for x in upstream])
        largest = tf.reduce_max(tf.concat([sizes, [0.0]], 0))
        # 2^100 is finite, and so is its inverse.
        exponent = tf.minimum(_LARGEST - tf.math.log(largest) / tf.math.log(2.0), 100.0)
        usable = tf.math.is_finite(largest) & (largest > 0.0)
        return tf.where(usable, tf.pow(2.0, tf.floor(exponent)), 1.0)


def _times_zero_is_zero(weights: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
    """Returns the product; 0 where the weight is 0, even if the logit is -inf."""
    return tf.where(tf.equal(weights, 0.0), tf.zeros_like(z), weights * z)
