"""`Float16ProductsPolicy`: FP32 everywhere, but FP16 goes into matrix products."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_mp")
class Float16ProductsPolicy(keras.DTypePolicy):
    """Computes in FP32, and multiplies matrices of FP16 numbers with FP32 results.

    Of `keras_mp.layers`, Dense, EinsumDense, ReversibleEmbedding, MultiHeadAttention
    and GroupQueryAttention round what they multiply to FP16, in the forward and in the
    backward pass, and accumulate and return FP32: what tensor cores compute at the
    speed of FP16. All other layers, and all Keras layers, compute in FP32. No
    activation overflows, and none has to be kept in FP16's range by a loss scale; but
    activations take the memory of FP32.

    An input of a product beyond 65,504 becomes infinite, and one below 2**-25 zero.
    With `scaled`, each is first multiplied by a power of two that brings its largest
    magnitude to between 2**14 and 2**15; then no product needs a loss scale, either.

    The `name` of the policy is `"float32"`, since all that is stored is.

    Args:
        scaled: bool, default False: whether to scale what is multiplied.
        variable_dtype: str, the dtype of weights, `"float32"` (default) or
            `"float16"`.

    Raises:
        ValueError: `variable_dtype` is another one.

    Example:

    >>> policy = keras_mp.Float16ProductsPolicy()
    >>> layer = keras_mp.layers.Dense(1, kernel_initializer="ones", dtype=policy)
    >>> layer(np.full((1, 4), 3e4, "float32")).numpy()    # an FP16 result would be inf
    array([[120000.]], dtype=float32)

    Reference: Mixed Precision Training, section 3.3.
    """

    def __init__(self, scaled: bool = False, variable_dtype: str = "float32") -> None:
        # Keras makes layers again from the name of their policy: its own in FP32.
        super().__init__("float32")
        if variable_dtype not in ("float16", "float32"):
            raise ValueError(
                "`variable_dtype` must be 'float32', or 'float16' for weights stored "
                f"in FP16. Received: variable_dtype={variable_dtype!r}. Leave it out."
            )
        self._scaled, self._stored = scaled, variable_dtype

    @property
    def scaled(self) -> bool:
        """Whether what is multiplied is scaled."""
        return self._scaled

    @property
    def variable_dtype(self) -> str:
        """The dtype of weights."""
        return self._stored

    def get_config(self) -> dict[str, Any]:
        return {"scaled": self._scaled, "variable_dtype": self._stored}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Float16ProductsPolicy):
            return False
        return other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((self._scaled, self._stored))

    def __repr__(self) -> str:
        return (
            f"<Float16ProductsPolicy scaled={self._scaled} "
            f"variable_dtype={self._stored!r}>"
        )


class KeepsPolicy:
    """Mixin for a layer that has a `Float16ProductsPolicy` when it is loaded, too."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        layer = super().from_config(config)  # type: ignore[misc]
        if isinstance(config.get("dtype"), dict):
            policy = keras.dtype_policies.deserialize(config["dtype"])
            if isinstance(policy, Float16ProductsPolicy):
                layer.dtype_policy = policy
        return layer
