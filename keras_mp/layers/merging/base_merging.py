"""What the layers that add their inputs share."""

import functools
import operator
from typing import Any

from keras import ops


def sum_in_fp32(inputs: Any) -> Any:
    """Returns the sum of tensors, FP32 from the first addition on."""
    return functools.reduce(operator.add, [ops.cast(x, "float32") for x in inputs])
