"""Kernels of softmax, normalization, sums and convolution, executed from their PTX.

Beside float64, with the bounds of the contracts in custom_ops/include/keras_mp. Every
kernel is assembled, too: none spills registers.
"""

import pytest
from cuda_ptx import kernels
from cuda_ptx.assembly import registers_by_kernel, spilled_bytes
from cuda_ptx.channels import batch_norm_excess, sum_excess
from cuda_ptx.compilers import assemble
from cuda_ptx.convolutions import Convolution, Window
from cuda_ptx.rows import RowNormProblem, Rows, SoftmaxProblem

# The compiler makes almost the same PTX for each architecture: every second or third of
# the problems is enough on the others.
CASES = {
    "sm_70-Half": ("sm_70", "Half", 2),
    "sm_75-Half": ("sm_75", "Half", 3),
    "sm_80-Half": ("sm_80", "Half", 1),
    "sm_90-Bfloat16": ("sm_90", "Bfloat16", 3),
}
# Of a thread: then three blocks of 256 threads share the 65,536 of a multiprocessor.
MOST_REGISTERS = 80

# Teams of a warp and of a block; rows that registers hold and that they do not; rows
# that are whole vectors and that are not; more rows than a block has warps.
ROWS = (
    Rows(9, 7),
    Rows(2, 64, kind="root_mean_square"),
    Rows(1, 217, offset=1, kind="unit_length"),
    Rows(1, 1032, plain=True),
    Rows(1, 1025, offset=1, kind="root_mean_square"),
    Rows(1, 8201, offset=2, kind="unit_length"),
    Rows(1, 8208),
)
# [outer, count, inner]: rows of a warp and of a block, in parts; pairs of columns or
# not, in tiles and parts.
SUMS = ((9, 65, 1), (1, 8200, 1), (2, 70, 66), (1, 100, 3), (1, 2100, 68))
# [outer, channels, inner], with as many layouts.
CHANNELS = (
    (100, 7, 1),
    (3, 5, 49),
    (1, 2, 1040),
    (67, 66, 1),
    (2, 3, 64),
    (1, 1, 8200),
)
# batch, channels, windows in both dimensions, and whether the kernel is FP32.
CONVOLUTIONS = (
    (2, 7, (Window(5), Window(6, 2, 2)), True),
    (1, 66, (Window(9, 3, 1, 2, False), Window(17, 5, 3)), False),
    (1, 2, (Window(2, 1), Window(2100, 1)), True),
)


def assert_no_spills(source, architecture):
    """Checks the registers of all kernels of a source."""
    _, log = assemble(kernels.ptx_of(source, architecture), architecture)
    assert spilled_bytes(log) == 0
    assert max(registers_by_kernel(log).values()) <= MOST_REGISTERS


@pytest.mark.xslow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_row_normalization(case):
    architecture, element, step = case
    for rows in ROWS[::step]:
        problem = RowNormProblem(rows, element, architecture)
        assert problem.forward() <= 1, rows
        assert max(problem.backward()) <= 1, rows
    assert_no_spills(kernels.row_norm_source(element), architecture)


@pytest.mark.xslow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_softmax(case):
    architecture, element, step = case
    for rows in ROWS[::step]:
        problem = SoftmaxProblem(rows, element, architecture, spread=5)
        assert problem.forward() <= 1, rows
        assert problem.forward(is_x_float=True) <= 1, rows
        assert problem.backward() <= 1, rows
        assert problem.backward_of_float() <= 1, rows
    assert_no_spills(kernels.softmax_source(element), architecture)


@pytest.mark.slow
@pytest.mark.xslow_except("sm_75-Half")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sums_and_batch_normalization(case):
    architecture, element, step = case
    for offset, shape in enumerate(SUMS[::step]):
        assert sum_excess(shape, element, architecture, offset % 2) <= 1, shape
    for offset, shape in enumerate(CHANNELS[::step]):
        found = batch_norm_excess(shape, element, architecture, offset % 3 // 2)
        assert {name: x for name, x in found.items() if not x <= 1} == {}, shape
    assert_no_spills(kernels.channel_source(element), architecture)
    assert_no_spills(kernels.FINISH, architecture)


@pytest.mark.slow
@pytest.mark.xslow_except("sm_75-Half")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_depthwise_convolution(case):
    architecture, element, step = case
    for batch, channels, windows, float_kernel in CONVOLUTIONS[::step]:
        problem = Convolution(
            batch, channels, windows, element, architecture, float_kernel
        )
        assert problem.y_excess() <= 1, windows
        assert problem.y_excess(element) <= 1, windows
        assert problem.grad_x_excess() <= 1, windows
        assert problem.grad_kernel_excess() <= 1, windows
    assert_no_spills(kernels.conv_source(element), architecture)
