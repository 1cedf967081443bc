"""`Float16MatmulPolicy`: FP32 everywhere, but FP16 goes into matrix products."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_mp")
class Float16MatmulPolicy(keras.DTypePolicy):
    """Computes in FP32, and multiplies matrices of FP16 numbers with FP32 results.

    That is what tensor cores compute at the speed of FP16. A layer of `keras_mp.layers`
    rounds the inputs and the weights of its matrix products to FP16, and in the
    backward pass also the upstream gradient; products, bias, activation, softmax,
    outputs and gradients are FP32. So activations cannot overflow, but they take the
    memory of FP32.

    The layers are Dense, EinsumDense, ReversibleEmbedding (its reverse product),
    MultiHeadAttention, GroupQueryAttention, Attention, AdditiveAttention, Dot, and
    Conv1D to Conv3D with a kernel and strides of 1. All others compute in FP32, and so
    do Keras layers: call `keras_mp.convert`.

    What goes into a product is infinite beyond 65,504, and zero below 2**-25, so that
    small gradients need a loss scale. With `scaled` it is first multiplied by a power
    of two that brings the largest magnitude of the tensor to between 2**14 and 2**15,
    and the result is divided by it: nothing overflows, what is lost is below 2**-39 of
    the largest, and no product needs a loss scale.

    The `name` is `"float32"`: Keras makes quantized layers, and most layers of a file,
    only from the name of their policy. A layer of your own that passes its policy on
    to layers inside it is therefore loaded in FP32.

    Args:
        scaled: bool, default False: whether to scale what is multiplied.
        variable_dtype: str, what weights are stored in: `"float32"` (default), or
            `"float16"`. Those are multiplied unchanged, without a scale, and have
            FP16 gradients.

    Raises:
        ValueError: `variable_dtype` is another one.

    Example:

    >>> policy = keras_mp.Float16MatmulPolicy()
    >>> layer = keras_mp.layers.Dense(1, kernel_initializer="ones", dtype=policy)
    >>> layer(np.full((1, 4), 3e4, "float32")).numpy()    # an FP16 result would be inf
    array([[120000.]], dtype=float32)

    Reference: Mixed Precision Training, section 3.3.
    """

    def __init__(self, scaled: bool = False, variable_dtype: str = "float32") -> None:
        super().__init__("float32")
        if variable_dtype not in ("float16", "float32"):
            raise ValueError(
                "`variable_dtype` must be 'float32', or 'float16' for weights stored "
                f"in FP16. Received: variable_dtype={variable_dtype!r}. Leave it out."
            )
        self._scaled, self._stored = scaled, variable_dtype

    @property
    def scaled(self) -> bool:
        """Whether to scale what is multiplied."""
        return self._scaled

    @property
    def variable_dtype(self) -> str:
        """What weights are stored in."""
        return self._stored

    def get_config(self) -> dict[str, Any]:
        return {"scaled": self._scaled, "variable_dtype": self._stored}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Float16MatmulPolicy):
            return False
        return other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((self._scaled, self._stored))

    def __repr__(self) -> str:
        return (
            f"<Float16MatmulPolicy scaled={self._scaled} "
            f"variable_dtype={self._stored!r}>"
        )


class KeepsPolicy:
    """Mixin for a layer that has a `Float16MatmulPolicy` also when it is loaded.

    Keras hands the name of a policy to the constructor, and nothing else of it.
    """

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        layer = super().from_config(config)  # type: ignore[misc]
        if isinstance(config.get("dtype"), dict):
            policy = keras.dtype_policies.deserialize(config["dtype"])
            if isinstance(policy, Float16MatmulPolicy):
                layer.dtype_policy = policy
        return layer
