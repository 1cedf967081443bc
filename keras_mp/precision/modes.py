"""The mode of a layer: a dtype policy that remembers the original one."""

from typing import Any

import keras

from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy

FLOAT16 = "float16"
MATMUL = "float16_matmul"
SCALED_MATMUL = "scaled_float16_matmul"
FLOAT32 = "float32"
# From the cheapest to the one that allows the widest range of numbers.
MODES = (FLOAT16, MATMUL, SCALED_MATMUL, FLOAT32)


class ComputePolicy(keras.DTypePolicy):
    """Computes in one dtype, with variables of another one.

    Keras then takes the dtype of a variable for the one that its layer computes in.

    Args:
        compute_dtype: str.
        variable_dtype: str.
    """

    def __init__(self, compute_dtype: str, variable_dtype: str) -> None:
        super().__init__(compute_dtype)
        self._stored = variable_dtype

    @property
    def variable_dtype(self) -> str:
        return self._stored


@keras.saving.register_keras_serializable(package="keras_mp")
class PrecisionPolicy(keras.dtype_policies.DTypePolicyMap):
    """The mode of a layer, and its original policy.

    It is a map without entries, since those are the only policies that Keras saves as
    objects; of others a layer gets back the name.

    Args:
        mode: str, one of `MODES`.
        base: the original policy of the layer, or its name.
        variable_dtype: str, what the layer stores its weights in; of an InputLayer, the
            original dtype.
        is_saved: bool, default True: whether a file holds the mode; of a layer that is
            made by the constructor of another one it holds the original policy.
        casts: bool, default True: whether inputs are cast.
    """

    def __init__(
        self,
        mode: str,
        base: Any,
        variable_dtype: str,
        is_saved: bool = True,
        casts: bool = True,
    ) -> None:
        self.mode, self.base = mode, keras.dtype_policies.get(base)
        self.is_saved, self.casts = is_saved, casts
        self._stored = variable_dtype
        super().__init__(_policy(mode, variable_dtype))

    @property
    def widens_weights(self) -> bool:
        """Whether weights that the layer stores in 16 bits are to be FP32."""
        return self._stored == "float32" and self.base.variable_dtype != "float32"

    @property
    def name(self) -> str:
        """That of what it computes in: `quantize` makes a policy of it."""
        return str(self.default_policy.name)

    def convert_input(self, x: Any, autocast: bool, dtype: str) -> Any:
        # Keras's normalizations do not cast what they are given, and return that dtype.
        casts = autocast if self.mode == FLOAT16 else True
        return super().convert_input(x, casts and self.casts, dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "base": keras.dtype_policies.serialize(self.base),
            "variable_dtype": self._stored,
            "is_saved": self.is_saved,
            "casts": self.casts,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        if not config["is_saved"]:
            return keras.dtype_policies.get(config["base"])
        return cls(**config)

    def __bool__(self) -> bool:
        return True  # an empty map is false

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrecisionPolicy):
            return False
        return other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((self.mode, self._stored))

    def __repr__(self) -> str:
        return f"<PrecisionPolicy mode={self.mode!r} base={self.base!r}>"


def _policy(mode: str, variable_dtype: str) -> keras.DTypePolicy:
    if mode in (MATMUL, SCALED_MATMUL):
        return Float16MatmulPolicy(mode == SCALED_MATMUL, variable_dtype)
    if mode == FLOAT16:
        is_mixed = variable_dtype == "float32"
        return keras.DTypePolicy("mixed_float16" if is_mixed else "float16")
    if variable_dtype != "float32":
        return ComputePolicy("float32", variable_dtype)
    return keras.DTypePolicy("float32")
