"""Every kernel of the CUDA product, executed from its PTX, against float64."""

import numpy as np
import pytest
from cuda_ptx import kernels
from cuda_ptx.elementwise import relu_by_kernel, round_by_kernel
from cuda_ptx.nvidia import ARCHITECTURES
from cuda_ptx.products import Case, Product

TURNS = {
    "nn": (True, False),
    "nt": (True, True),
    "tn": (False, False),
    "tt": (False, True),
}
ELEMENTS = {"sm_70": ["Half"], "sm_75": ["Half"]}
BOTH = ["Half", "Bfloat16"]
# Tensor cores cut off what rounding to nearest would round (keras_mp/gemm.h).
ROUNDINGS = 3


def cases_of(shape):
    """Sizes that end in a tile, alignments, splits and epilogues, for a tile shape."""
    return {
        "odd": Case(33, 31, 77, gap=1, offset=1, float_bias=False, alpha=0.37,
                    activation="gelu"),
        "split": Case(19, 24, 3 * 64 + 8, k_per_split=128, batch=2, activation="relu",
                      float_output=True, float_bias=True),
        "whole": Case(shape.m, shape.n, 3 * shape.k),
        "by-4-bytes": Case(24, 40, 100, offset=2, activation="tanh"),
        "by-8-bytes": Case(24, 40, 100, offset=4, activation="sigmoid"),
        "many-steps": Case(shape.m + 9, shape.n - 3, 5 * shape.k + 7, gap=3),
    }  # fmt: skip


def matrix_of_tests():
    """Every kernel, with unaligned matrices and one to three of the other cases.

    The compiler makes almost the same PTX for sm_75 as for sm_70, and for sm_90 as for
    sm_80: there one other case is enough.
    """
    for architecture in ARCHITECTURES:
        for shape in kernels.shapes_of(architecture):
            for element in ELEMENTS.get(architecture, BOTH):
                for number, turn in enumerate(TURNS):
                    others = [name for name in cases_of(shape) if name != "odd"]
                    first = (number + len(element)) % len(others)
                    names = ["odd", others[first]]
                    if architecture in ("sm_70", "sm_80"):
                        names.append(others[first - 2])
                    yield architecture, shape.name, element, turn, names


TESTS = {"-".join(test[:4]): test for test in matrix_of_tests()}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_products(test):
    architecture, shape, element, turn, names = test
    cases = cases_of(kernels.SHAPES[shape])
    for name in names:
        product = Product(cases[name], element, TURNS[turn])
        result = product.run(shape, architecture)
        assert product.error_over_bound(result, ROUNDINGS) <= 1, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("element", BOTH)
def test_an_empty_sum_has_the_epilogue_of_zero(architecture, element):
    product = Product(Case(9, 37, 0, float_bias=True, activation="tanh"), element)
    product.problem.splits = 0
    product.reduce(architecture)
    assert product.error_over_bound(product.result(), ROUNDINGS) <= 1


# bits of 1 + 2^-11 and 1 + 2^-8 are ties, and 70,000 overflows FP16.
ROUNDED = {
    "Half": [0x3C00, 0x3C04, 0x7C00, 0xC000, 0x7FFF],
    "Bfloat16": [0x3F80, 0x3F80, 0x4789, 0xC000, 0x7FFF],
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("element", BOTH)
def test_round(architecture, element):
    numbers = np.float32([1 + 2**-11, 1 + 2**-8, 70000, -2, np.nan])
    result = round_by_kernel(architecture, element, np.resize(numbers, 999))
    np.testing.assert_array_equal(result, np.resize(np.uint16(ROUNDED[element]), 999))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("dtype", "infinity"),
    [(np.float16, 0x7C00), (np.float32, 0x7F800000)],
    ids=["float16", "float32"],
)
def test_relu(architecture, dtype, infinity):
    numbers = np.array([1, -1, -0.0, np.nan, np.inf, -np.inf, -np.nan], dtype)
    matrix = np.resize(numbers, (2, 9, 35))
    result = relu_by_kernel(architecture, matrix, infinity)
    np.testing.assert_array_equal(result, np.where(matrix <= 0, dtype(0), matrix))
