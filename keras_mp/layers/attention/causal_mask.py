"""The causal mask of an attention. The kernel needs no tensor for it."""

from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.typing import Tensor


class CausalMask:
    """Stands for a mask that also hides the keys after each query.

    Attributes:
        other: the rest of the mask, or None.
    """

    def __init__(self, other: Any) -> None:
        self.other = other


def merge(mask: Tensor, causal: Any) -> Any:
    """Returns the mask that hides what either hides.

    Args:
        mask: bool tensor, or None.
        causal: bool tensor that broadcasts with it.
    """
    return causal if mask is None else ops.logical_and(mask, causal)


class HidesLaterKeys:
    """Mixin for a Keras attention: its causal mask is a `CausalMask`.

    It remains a tensor where a subclass has methods of its own for masks.
    """

    delegated_methods = frozenset({"_compute_attention_mask"})

    def _compute_attention_mask(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        cls = type(self)
        base = next(c for c in cls.__mro__ if HidesLaterKeys in c.__bases__)
        is_own = keras_internals.takes_masks_otherwise(cls, base)
        mask = super()._compute_attention_mask(  # type: ignore[misc]
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask and is_own,
        )
        return CausalMask(mask) if use_causal_mask and not is_own else mask
