"""AdaptiveAveragePooling1D, 2D and 3D, in FP32 between 16-bit inputs and outputs."""

from typing import Any

import keras

from keras_mp.layers.pooling.base_pooling import spatial_axes
from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


class FP32AdaptivePooling:
    """Mixed into a Keras adaptive average pooling: sums in FP32 and rounds once."""

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        from keras_mp.ops.pooling import adaptive_average_pool

        axes = spatial_axes(self, inputs)
        return adaptive_average_pool(inputs, self.output_size, axes)


@keras.saving.register_keras_serializable(package="keras_mp")
class AdaptiveAveragePooling1D(
    FP32AdaptivePooling, keras.layers.AdaptiveAveragePooling1D
):
    """`keras.layers.AdaptiveAveragePooling1D`, which averages in FP32 and rounds once.

    Nothing is held for the backward pass.

    Args: as in `keras.layers.AdaptiveAveragePooling1D`.

    Example:

    >>> layer = keras_mp.layers.AdaptiveAveragePooling1D(2, dtype="float16")
    >>> x = np.full((1, 5, 1), 4e4, "float16")    # a sum is inf in FP16
    >>> layer(x).numpy().ravel().tolist()
    [40000.0, 40000.0]

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class AdaptiveAveragePooling2D(
    FP32AdaptivePooling, keras.layers.AdaptiveAveragePooling2D
):
    """`keras.layers.AdaptiveAveragePooling2D`, which averages in FP32 and rounds once.

    Nothing is held for the backward pass.

    Args: as in `keras.layers.AdaptiveAveragePooling2D`.

    Example:

    >>> layer = keras_mp.layers.AdaptiveAveragePooling2D((1, 2), dtype="float16")
    >>> x = np.full((1, 5, 5, 1), 4e4, "float16")    # a sum is inf in FP16
    >>> layer(x).numpy().ravel().tolist()
    [40000.0, 40000.0]

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class AdaptiveAveragePooling3D(
    FP32AdaptivePooling, keras.layers.AdaptiveAveragePooling3D
):
    """`keras.layers.AdaptiveAveragePooling3D`, which averages in FP32 and rounds once.

    Nothing is held for the backward pass.

    Args: as in `keras.layers.AdaptiveAveragePooling3D`.

    Example:

    >>> layer = keras_mp.layers.AdaptiveAveragePooling3D((1, 1, 2), dtype="float16")
    >>> x = np.full((1, 2, 2, 3, 1), 4e4, "float16")    # a sum is inf in FP16
    >>> layer(x).numpy().ravel().tolist()
    [40000.0, 40000.0]

    Reference: Mixed Precision Training, section 3.3.
    """
