"""Mixins for the average pooling layers: 16 bits in and out, FP32 accumulation."""

from typing import Any

from keras import ops

from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


class FP32AveragePooling:
    """Mixin for a Keras average pooling: sums each window in FP32 and rounds once."""

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        from keras_mp.ops import pooling

        def pool(x: Tensor) -> Any:
            return pooling.average_pool(x, self.pool_size, self.strides, self.padding)

        if self.data_format == "channels_last":
            return pool(inputs)
        # The op and TensorFlow's kernels for CPUs pool channels-last inputs only.
        last = len(inputs.shape) - 1
        inside = list(range(2, last + 1))
        outputs = pool(ops.transpose(inputs, [0, *inside, 1]))
        return ops.transpose(outputs, [0, last, *range(1, last)])


class FP32GlobalPooling:
    """Mixin for a Keras global average pooling: sums in FP32 and rounds once."""

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        from keras_mp.ops import mean

        return mean(inputs, spatial_axes(self, inputs), self.keepdims)


def spatial_axes(layer: Any, inputs: Tensor) -> list[int]:
    """Returns the spatial axes: all except the batch's and the channels'."""
    first = 1 if layer.data_format == "channels_last" else 2
    return list(range(first, first + len(inputs.shape) - 2))
