"""The two 16-bit floating-point formats."""

HALVES = ("float16", "bfloat16")


def is_half(dtype: str) -> bool:
    """Tells whether `dtype` is one of the two 16-bit formats."""
    return dtype in HALVES
