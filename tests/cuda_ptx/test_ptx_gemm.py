"""Every kernel of the CUDA product, executed from its PTX, against float64."""

import numpy as np
import pytest
from cuda_ptx import kernels
from cuda_ptx.compilers import ARCHITECTURES
from cuda_ptx.elementwise import relu_by_kernel, round_by_kernel
from cuda_ptx.products import Case, Product
from cuda_ptx.tensor_cores import A100, H100, NEAREST, V100

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
    for number, product in enumerate(kernels.products()):
        architecture, shape, element, _ = product
        others = [name for name in cases_of(kernels.SHAPES[shape]) if name != "odd"]
        first = (number + len(element)) % len(others)
        names = ["odd", others[first]]
        if architecture in ("sm_70", "sm_80"):
            names.append(others[first - 2])
        yield *product, names


TESTS = {"-".join(test[:4]): test for test in matrix_of_tests()}


@pytest.mark.xslow_except(
    "sm_70-WmmaSmall-Half-nn",
    "sm_90-MmaSmall-Bfloat16-tt",
    "sm_90-MmaMedium-Bfloat16-tt",
    "sm_90-MmaNarrow-Bfloat16-tt",
)
@pytest.mark.slow_except("sm_70-WmmaSmall-Half-nn")
@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_products(test):
    architecture, shape, element, layout, names = test
    cases = cases_of(kernels.SHAPES[shape])
    for name in names:
        product = Product(cases[name], element, kernels.LAYOUTS[layout])
        result = product.run(shape, architecture)
        assert product.error_over_bound(result, ROUNDINGS) <= 1, name


def cut_off(k):
    """The first product is 1, the others are just below its last bit, 2^-23."""
    a, b = np.full((1, 16, k), 2**-12 * (1 - 2**-10)), np.full((1, k, 16), 2.0**-11)
    a[:, :, 0] = b[:, 0, :] = 1
    return a, b


# Architecture, shape, tensor cores, and whether the error is beyond the bound for sums
# that are rounded to nearest.
ADVERSARIAL = {
    "nearest": ("sm_70", "WmmaSmall", NEAREST, False),
    "V100": ("sm_70", "WmmaSmall", V100, True),
    "A100": ("sm_80", "MmaSmall", A100, False),
    "H100": ("sm_90", "MmaSmall", H100, False),
}


@pytest.mark.xslow_except("V100-*", "A100-whole", "H100-split", "nearest-whole")
@pytest.mark.slow_except("V100-whole")
@pytest.mark.parametrize("k_per_split", [None, 128], ids=["whole", "split"])
@pytest.mark.parametrize("test", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_the_bound_holds_where_tensor_cores_cut_off_most(test, k_per_split):
    architecture, shape, tensor_cores, is_beyond = test
    case = Case(16, 16, 512, float_output=True, k_per_split=k_per_split)
    product = Product(case, data=cut_off(case.k))
    result = product.run(shape, architecture, tensor_cores=tensor_cores)
    assert product.error_over_bound(result, ROUNDINGS) <= 1
    if k_per_split is None:  # a split without the 1 is exact
        assert (product.error_over_bound(result, roundings=1) > 1) == is_beyond


@pytest.mark.slow
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


@pytest.mark.slow_except("Half-sm_80")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("element", BOTH)
def test_round(architecture, element):
    numbers = np.float32([1 + 2**-11, 1 + 2**-8, 70000, -2, np.nan])
    result = round_by_kernel(architecture, element, np.resize(numbers, 999))
    np.testing.assert_array_equal(result, np.resize(np.uint16(ROUNDED[element]), 999))


@pytest.mark.slow_except("float16-sm_80")
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
