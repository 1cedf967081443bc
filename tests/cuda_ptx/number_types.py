"""The types of PTX as NumPy types."""

import re

import numpy as np

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}
FAMILIES = {"b": UNSIGNED, "u": UNSIGNED, "s": SIGNED, "f": FLOAT}

NAME = re.compile(r"[busf](8|16|32|64)|bf16|pred")


def is_type(name):
    """Whether a part of an opcode names a type."""
    return NAME.fullmatch(name) is not None


def size_of(kind):
    """Bytes of a number of the type."""
    return int(re.search(r"\d+", kind).group()) // 8


def array_type(kind):
    """The NumPy type; bfloat16 numbers are held as their bits."""
    if kind == "pred":
        return np.bool_
    if kind == "bf16":
        return np.uint16
    return FAMILIES[kind[0]][8 * size_of(kind)]


def unsigned_of(dtype):
    """The unsigned integers with as many bits."""
    return UNSIGNED[8 * np.dtype(dtype).itemsize]


def widen_bfloat16(bits):
    """The FP32 numbers with these bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(x):
    """The bits of FP32 numbers rounded to nearest even; every NaN becomes 0x7fff."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    last = bits >> np.uint32(16) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last) >> np.uint32(16)
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def round_to_float16(x):
    """FP32 numbers rounded to nearest even; every NaN becomes 0x7fff."""
    bits = x.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), bits).view(np.float16)
