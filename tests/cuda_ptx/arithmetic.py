"""The instructions of PTX that compute in registers: a table of functions of arrays.

Each entry makes, from the modifiers and types of an opcode, a function of the operands,
which are arrays of all threads. A modifier that an entry does not take is an error.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cuda_ptx.number_types import (
    array_type,
    is_type,
    round_to_bfloat16,
    round_to_float16,
    size_of,
    widen_bfloat16,
)
from cuda_ptx.parser import Unsupported


@dataclass(frozen=True)
class Operation:
    """A function of arrays of the types `sources` to one of the type `result`."""

    sources: tuple[str, ...]
    result: str
    function: Callable


class Opcode:
    """The modifiers of an instruction, which its entry takes one by one."""

    def __init__(self, instruction):
        self._text = instruction.text
        self._modifiers = [m for m in instruction.modifiers if not is_type(m)]
        self.kinds = [m for m in instruction.modifiers if is_type(m)]

    def take(self, *names):
        """The modifier among `names` that is there, or None."""
        for name in names:
            if name in self._modifiers:
                self._modifiers.remove(name)
                return name
        return None

    def kind(self, families):
        """The one type, which has to be of the families, such as "us"."""
        (kind,) = self.kinds
        if kind != "pred" and kind[0] not in families:
            raise Unsupported(self._text)
        return kind

    def end(self):
        """Raises unless every modifier was taken."""
        if self._modifiers:
            raise Unsupported(f"{self._text}: {self._modifiers}")


def operation(instruction):
    """The operation of an instruction of the table."""
    opcode = Opcode(instruction)
    try:
        made = TABLE[instruction.name](opcode)
    except (KeyError, ValueError) as error:
        raise Unsupported(instruction.text) from error
    opcode.end()
    if len(instruction.operands) != len(made.sources) + 1:
        raise Unsupported(instruction.text)
    return made


def plain(families, count, function, *ignored):
    """An instruction whose operands and result have one type."""

    def make(opcode):
        opcode.take(*ignored)
        kind = opcode.kind(families)
        return Operation((kind,) * count, kind, function)

    return make


def is_nan(x):
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def either_is_nan(a, b):
    return is_nan(a) | is_nan(b)


# u: also true if an operand is NaN. Those without it are false then.
COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a != b) & ~either_is_nan(a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: (a == b) | either_is_nan(a, b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~either_is_nan(a, b),
    "nan": either_is_nan,
}


def compare(opcode):
    kind = opcode.kind("busf")
    function = COMPARISONS[opcode.take(*COMPARISONS)]
    return Operation((kind, kind), "pred", function)


def select(opcode):
    kind = opcode.kind("busf")
    return Operation((kind, kind, "pred"), kind, lambda a, b, p: np.where(p, a, b))


def divide(opcode):
    kind = opcode.kind("usf")
    if kind[0] == "f":
        _to_nearest(opcode)
        return Operation((kind, kind), kind, lambda a, b: a / b)

    def quotient(a, b):  # towards zero
        size = np.abs(a) // np.abs(b)
        return np.where((a < 0) != (b < 0), np.negative(size), size)

    return Operation((kind, kind), kind, quotient)


def multiply(opcode):
    kind = opcode.kind("usf")
    if kind[0] == "f":
        opcode.take("rn")
        return Operation((kind, kind), kind, lambda a, b: a * b)
    part = opcode.take("lo", "wide")
    result = _double(kind) if part == "wide" else kind
    if part is None:
        raise Unsupported("mul.hi")
    wide = array_type(result)
    return Operation((kind, kind), result, lambda a, b: a.astype(wide) * b.astype(wide))


def multiply_add(opcode):
    product = multiply(opcode)
    return Operation(
        (*product.sources, product.result),
        product.result,
        lambda a, b, c: product.function(a, b) + c,
    )


def _double(kind):
    return f"{kind[0]}{16 * size_of(kind)}"


def _to_nearest(opcode):
    if opcode.take("rn") is None:
        raise Unsupported("a rounding other than rn")


def fused_multiply_add(opcode):
    if opcode.kind("f") != "f32":
        raise Unsupported("fma of another type than f32")
    rounding = opcode.take("rn", "rm")
    if rounding is None:
        raise Unsupported("a rounding other than rn and rm")
    cast = to_nearest if rounding == "rn" else downwards
    return Operation(("f32",) * 3, "f32", lambda a, b, c: cast(sum_to_odd(a, b, c)))


def sum_to_odd(a, b, c):
    """a * b + c of FP32 numbers in float64, which casts to FP32 as the exact sum does.

    Where the sum is not exact its last bit is made odd (Boldo and Melquiond, 2008).
    """
    product = a.astype(np.float64) * b  # exact
    total = product + c
    rest = total - product
    error = (product - (total - rest)) + (c - rest)
    even = total.view(np.int64) % 2 == 0
    neighbour = np.nextafter(total, np.copysign(np.inf, error))
    inexact = np.isfinite(error) & (error != 0) & np.isfinite(total)
    return np.where(inexact & even, neighbour, total)


def to_nearest(x):
    return x.astype(np.float32)


def downwards(x):
    nearest = x.astype(np.float32)
    return np.where(nearest > x, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def shift(left):
    def make(opcode):
        kind = opcode.kind("bus")
        bits = 8 * size_of(kind)

        def function(x, count):  # a count of all bits or more shifts everything out
            by = np.minimum(count, bits - 1).astype(x.dtype)
            moved = x << by if left else x >> by
            emptied = 0 if left or x.dtype.kind == "u" else moved
            return np.where(count < bits, moved, emptied).astype(x.dtype)

        return Operation((kind, "u32"), kind, function)

    return make


def logic(function):
    def make(opcode):
        kind = opcode.kind("b")
        return Operation((kind, kind), kind, function)

    return make


def invert(opcode):
    kind = opcode.kind("b")
    return Operation((kind,), kind, lambda a: ~a)


def lop3(opcode):
    if opcode.kind("b") != "b32":
        raise Unsupported("lop3 of another type than b32")

    def function(a, b, c, table):
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for row in np.flatnonzero(int(table[0]) >> np.arange(8) & 1):
            x, y, z = (v if row & m else ~v for v, m in ((a, 4), (b, 2), (c, 1)))
            result |= x & y & z
        return result

    return Operation(("b32",) * 4, "b32", function)


def approximate(function):
    """Within PTX's bound: the nearest FP32 number."""

    def make(opcode):
        if opcode.take("approx") is None:
            _to_nearest(opcode)
        flushes = opcode.take("ftz")
        kind = opcode.kind("f")

        def run(x):
            y = function(flush(x).astype(np.float64) if flushes else x.astype(float))
            y = y.astype(x.dtype)
            return flush(y) if flushes else y

        return Operation((kind,), kind, run)

    return make


def flush(x):
    """Subnormal FP32 numbers become 0, with their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(x * 0, x), x)


def convert(opcode):
    to, source = opcode.kinds
    whole = opcode.take("rni", "rzi", "rmi", "rpi")
    rounding = opcode.take("rn")
    saturates = opcode.take("sat")
    is_float = source[0] == "f" or source == "bf16"
    if is_float and whole is None and rounding is None and _narrows(to, source):
        raise Unsupported("cvt without a rounding")

    def function(x):
        x = widen_bfloat16(x) if source == "bf16" else x
        if whole:
            x = WHOLE[whole](x)
        if to in ("f16", "bf16") and is_float:
            return round_to_float16(x) if to == "f16" else round_to_bfloat16(x)
        if to[0] in "us" and is_float:
            return _to_integer(x, array_type(to))
        if saturates:
            x = np.where(is_nan(x), 0, np.clip(x, 0, 1))
        return x.astype(array_type(to))

    if saturates and not (is_float and to[0] == "f"):
        raise Unsupported("cvt.sat to integers")
    return Operation((source,), to, function)


WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _narrows(to, source):
    return to[0] in "us" or to == "bf16" or size_of(to) < size_of(source)


def _to_integer(x, dtype):
    """Numbers outside of the range become its end, NaN 0."""
    limits = np.iinfo(dtype)
    x = np.where(np.isnan(x), 0, x.astype(np.float64))
    inside = (x > limits.min) & (x < limits.max)
    ends = np.where(x <= limits.min, limits.min, limits.max)
    return np.where(inside, np.where(inside, x, 0).astype(dtype), ends.astype(dtype))


TABLE = {
    "abs": plain("sf", 1, np.abs),
    "add": plain("busf", 2, np.add, "rn"),
    "and": logic(np.bitwise_and),
    "cvt": convert,
    "div": divide,
    "ex2": approximate(np.exp2),
    "fma": fused_multiply_add,
    "lop3": lop3,
    "mad": multiply_add,
    "max": plain("usf", 2, np.fmax),
    "min": plain("usf", 2, np.fmin),
    "mul": multiply,
    "neg": plain("sf", 1, np.negative),
    "not": invert,
    "or": logic(np.bitwise_or),
    "rcp": approximate(lambda x: 1 / x),
    "rem": plain("us", 2, np.fmod),
    "selp": select,
    "setp": compare,
    "shl": shift(left=True),
    "shr": shift(left=False),
    "sqrt": approximate(np.sqrt),
    "sub": plain("busf", 2, np.subtract, "rn"),
    "xor": logic(np.bitwise_xor),
}
