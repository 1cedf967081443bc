"""Sums of tensor cores and the places of elements, by hand and against float64."""

import numpy as np
import pytest
from cuda_ptx.tensor_cores import (
    A100,
    H100,
    MMA_A,
    MMA_B,
    MMA_C,
    NEAREST,
    V100,
    WmmaLayouts,
)

MODELS = {"nearest": NEAREST, "V100": V100, "A100": A100, "H100": H100}


def dot(model, a, b, c=0.0):
    """The sum of c and of the products of a and b."""
    a, b = np.array([a], np.float64), np.array([b], np.float64).T
    (((result,),),) = model.multiply_add(a[None], b[None], np.float32([[[c]]]))
    assert result.dtype == np.float32
    return float(result)


# 1 and what is added to it; what each model makes of that.
SUMS = {
    # Half of the last bit of 1, twice: lost one by one, kept as a sum with a bit more.
    "two-halves": ([2**-24] * 2, {"nearest": 1, "V100": 1, "A100": 1 + 2**-23}),
    # Three quarters of it are rounded up, or cut off.
    "three-quarters": ([0.75 * 2**-23], {"nearest": 1 + 2**-23, "A100": 1, "H100": 1}),
    "three-quarters-of-two": (
        [0.75 * 2**-23] * 2,
        # Cut to a half by A100, and not at all by H100, which cuts off the sum.
        {"V100": 1, "A100": 1 + 2**-23, "H100": 1 + 2**-23},
    ),
    "quarters": ([2**-25] * 4, {"V100": 1, "A100": 1, "H100": 1 + 2**-23}),
    "next-group": ([0, 0, 0, 0, 2**-23], {"V100": 1 + 2**-23, "A100": 1 + 2**-23}),
    "infinite": ([np.inf], {"nearest": np.inf, "V100": np.inf}),
}


@pytest.mark.parametrize(("terms", "expected"), SUMS.values(), ids=SUMS)
def test_sums_known_by_hand(terms, expected):
    for name, result in expected.items():
        assert dot(MODELS[name], terms, [1.0] * len(terms), c=1.0) == result, name


def test_nan_stays():
    for model in MODELS.values():
        with np.errstate(invalid="ignore"):
            assert np.isnan(dot(model, [np.inf, np.inf], [1.0, -1.0]))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_integers_are_added_exactly(model):
    random = np.random.default_rng(0)
    a = random.integers(-8, 9, (3, 16, 16)).astype(np.float64)
    b = random.integers(-8, 9, (3, 16, 8)).astype(np.float64)
    c = random.integers(-8, 9, (3, 16, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.multiply_add(a, b, c), a @ b + c)


@pytest.mark.parametrize(
    ("places", "shape"),
    [(MMA_A, (16, 16)), (MMA_B, (16, 8)), (MMA_C, (16, 8))],
    ids=["a", "b", "c"],
)
def test_the_lanes_of_a_warp_hold_each_element_once(places, shape):
    held = np.zeros(shape)
    np.add.at(held, places, 1)
    np.testing.assert_array_equal(held, 1)


def test_places_of_the_ptx_manual():
    # Lane 5 is thread 1 of group 1.
    assert list(zip(*(p[5].tolist() for p in MMA_A), strict=True)) == [
        (1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11),
    ]  # fmt: skip
    assert list(zip(*(p[5].tolist() for p in MMA_B), strict=True)) == [
        (2, 1), (3, 1), (10, 1), (11, 1),
    ]  # fmt: skip
    assert list(zip(*(p[5].tolist() for p in MMA_C), strict=True)) == [
        (1, 2), (1, 3), (9, 2), (9, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("fragment", "copies"), [("a.row", 2), ("b.col", 2), ("c", 1)])
def test_a_wmma_fragment_has_one_random_layout(fragment, copies):
    layouts = WmmaLayouts(seed=1)
    rows, columns = layouts.elements(fragment)
    held = np.zeros((16, 16))
    np.add.at(held, (rows, columns), 1)
    np.testing.assert_array_equal(held, copies)
    np.testing.assert_array_equal(layouts.elements(fragment), (rows, columns))
    assert not np.array_equal(WmmaLayouts(seed=2).elements(fragment), (rows, columns))
