"""`TensorStatistics` against NumPy's conversions to FP16."""

import numpy as np
import pytest

from keras_mp.diagnostics.statistics import TensorStatistics, total

# Where FP16 begins to round to zero, to subnormal numbers, and to infinity, each with
# the FP32 numbers before and after it.
EDGES = [2.0**-25, 2.0**-24, 2.0**-14 - 2.0**-25, 2.0**-14, 65_504.0, 65_520.0]


def numbers():
    edges = np.array(EDGES, "float32")
    near = [np.nextafter(edges, np.float32(to)) for to in (0, np.inf)]
    random = np.random.default_rng(0)
    spread = np.ldexp(random.uniform(0.5, 1, 2000), random.integers(-60, 40, 2000))
    special = [0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, 3.4e38, 2.0**-127]
    return np.concatenate([edges, -edges, *near, spread, special]).astype("float32")


def rounded(x, scale):
    with np.errstate(over="ignore"):
        return (x.astype("float64") * scale).astype("float16")


@pytest.mark.parametrize("exponent", range(-30, 41, 5))
def test_losses_at_a_scale_are_those_of_a_conversion(exponent):
    x = numbers()
    found = TensorStatistics.of(x)
    half = rounded(x, 2.0**exponent)
    assert found.lost_at(exponent) == np.count_nonzero((x != 0) & (half == 0))
    assert found.overflows_at(exponent) == np.count_nonzero(
        np.isfinite(x) & np.isinf(half)
    )


def test_counts():
    x = numbers()
    found = TensorStatistics.of(x)
    half = np.abs(rounded(x, 1))
    assert found.elements == x.size
    assert (found.zeros, found.infinities, found.nans) == (2, 2, 1)
    assert sum(found.exponents.values()) == x.size - 5
    assert found.subnormals == np.count_nonzero((half > 0) & (half < 2.0**-14))
    assert found.smallest == 2.0**-149 and found.largest == np.float32(3.4e38)


@pytest.mark.parametrize("x", [[], [0.0], [np.nan, np.inf]], ids=["none", "0", "nan"])
def test_no_finite_magnitude(x):
    found = TensorStatistics.of(np.array(x, "float32"))
    assert found.smallest is None and found.largest is None
    assert found.lost == found.overflows == 0


def test_sum_is_that_of_both_tensors():
    x = numbers()
    parts = [TensorStatistics.of(part) for part in np.array_split(x, 3)]
    assert total(parts) == TensorStatistics.of(x)
    assert total([]) is None


def test_dict_reads_back():
    found = TensorStatistics.of(numbers())
    assert TensorStatistics.from_dict(found.to_dict()) == found
