"""Every kernel of the update step, executed from its PTX, against exact bits."""

import itertools

import numpy as np
import pytest
from cuda_ptx import kernels, update_oracle
from cuda_ptx.assembly import registers_by_kernel, spilled_bytes
from cuda_ptx.compilers import ARCHITECTURES, assemble
from cuda_ptx.products import element_bits, element_values
from cuda_ptx.update_arguments import RULES
from cuda_ptx.update_checks import check_by_kernels, pairs_by_kernel
from cuda_ptx.updates import LARGE, ROUNDINGS, SMALL, Step, Variable, same

# 4,096 elements are a chunk, 1,024 the threads' vectors, 32 a group of a coded slot.
PLAIN = [
    Variable(4099),
    Variable(217, "Bfloat16", "Bfloat16", offset=1, decays=True),
    Variable(31, "Float", form="master", decays=True),
    Variable(1, "Float", "Bfloat16", offset=3),
]
COMPRESSED = [
    Variable(4099, form="weight, remainder", coded=True, decays=True),
    Variable(217, "Bfloat16", "Bfloat16", "weight", coded=True, offset=1),
    Variable(33, "Float", form="master", coded=True),
    Variable(64, "Half", "Bfloat16", coded=True),
    Variable(66, "Float", "Bfloat16", "weight, remainder", offset=4),
    Variable(4099, form="weight, short remainder", coded=True, decays=True),
    Variable(66, "Float", "Bfloat16", "weight, short remainder", offset=1),
    Variable(4099, form="weight, short remainder", coded=True, bits=4, decays=True),
    Variable(217, "Bfloat16", "Bfloat16", "weight", coded=True, bits=4, offset=1),
    Variable(17, "Float", form="master", coded=True, bits=4),
]
FORMS = {"plain": PLAIN, "compressed": COMPRESSED}
# The compiler makes almost the same PTX for sm_75 as for sm_70, and for sm_90 as for
# sm_80. One rule is enough there.
CASES = {
    f"{rule}-{architecture}": (rule, architecture)
    for number, rule in enumerate(RULES)
    for architecture in (
        ARCHITECTURES if rule == "Adam" else [("sm_70", "sm_80")[number % 2]]
    )
}
# Of a thread: then four blocks of 256 threads share the 65,536 of a multiprocessor.
MOST_REGISTERS = 64


@pytest.mark.xslow_except("Adam-sm_90")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule(case):
    rule, architecture = case
    for form, rounding in itertools.product(FORMS, ROUNDINGS):
        step = Step(rule, FORMS[form], rounding, options=rounding == "nearest")
        assert step.mistakes(architecture) == [], (form, rounding)
    ptx = kernels.ptx_of(kernels.update_source(rule), architecture)
    _, log = assemble(ptx, architecture)
    assert spilled_bytes(log) == 0
    assert max(registers_by_kernel(log).values()) <= MOST_REGISTERS


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_is_not_finite_writes_nothing(form):
    assert Step("Adam", FORMS[form]).mistakes("sm_80", finite=False) == []


def special_numbers(size):
    """Random numbers, of which one in eight is special."""
    random = np.random.default_rng(0)
    special = random.choice(np.float32(SMALL + LARGE), size)
    is_special = random.random(size) < 0.125
    return np.where(is_special, special, random.standard_normal(size, np.float32))


@pytest.mark.xslow_except("1024-sm_80", "1024-sm_90", "3-sm_70", "3-sm_90")
@pytest.mark.slow_except("1024-sm_80")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("scale", [1024, 3])
def test_check(architecture, scale):
    random = np.random.default_rng(0)
    numbers = [
        (random.standard_normal(size) * 500).astype(np.float32)
        for size in (4099, 33, 1, 217)
    ]
    numbers[3][5:7] = np.inf, np.nan
    gradients = [
        (element_bits(numbers[0], "Half"), "Half", 1),
        (element_bits(numbers[1], "Bfloat16"), "Bfloat16", 0),
        (numbers[2], "Float", 3),
        (numbers[3], "Float", 0),
    ]
    values = [x if t == "Float" else element_values(x, t) for x, t, _ in gradients]
    expected = [x / np.float32(scale) for x in values]
    unscaled, largest, total = check_by_kernels(architecture, gradients, scale)
    for found, numbers in zip(unscaled, expected, strict=True):
        np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(largest[:3], [np.abs(x).max() for x in expected[:3]])
    assert np.isnan(largest[3])
    assert np.isnan(total)
    _, _, total = check_by_kernels(architecture, gradients[:3], scale)
    exact = sum(np.square(x.astype(np.float64)).sum() for x in expected[:3])
    # A thread adds 16 rounded squares in FP32: 17 roundings of 2^-24, and one.
    assert abs(total - exact) <= 18 * 2**-24 * exact


@pytest.mark.slow_except("SyncMastersKernel-sm_80-stochastic")
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", ["SyncMastersKernel", "CastKernel"])
def test_masters_and_weights(kernel, architecture, rounding):
    pairs = []
    for size, element, offset in ((4099, "Half", 0), (217, "Bfloat16", 1)):
        masters = special_numbers(size)
        with np.errstate(over="ignore"):
            weights = element_bits(masters, element)
        weights[::3] ^= 1  # not a rounding to nearest, and not always one of both sides
        weights[::5] ^= 64
        uniforms = np.random.default_rng(1).random(size, np.float32)
        uniforms = uniforms if rounding == "stochastic" else None
        pairs.append((masters, weights, element, uniforms, offset))
    found = pairs_by_kernel(architecture, kernel, pairs, ROUNDINGS.index(rounding))
    for pair, (found_masters, found_weights) in zip(pairs, found, strict=True):
        masters, weights, element, uniforms, _ = pair
        with np.errstate(all="ignore"):
            if kernel == "CastKernel":
                weights = update_oracle.cast(masters, element, uniforms)
            else:
                masters = update_oracle.synchronized(
                    masters, weights, element, rounding
                )
        assert same(found_masters, masters, element)
        assert same(found_weights, weights, element)
