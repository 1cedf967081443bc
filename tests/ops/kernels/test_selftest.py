"""The self-test of kernels: a second CPU as a GPU that has wrong kernels."""

import functools
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.ops import batch_normalization
from keras_mp.ops.kernels import dispatch, native, selftest, selftest_ops, update
from keras_mp.ops.kernels.selftest_ops import (
    convolution_problem,
    product_problem,
    reduction_problem,
)
from keras_mp.ops.kernels.selftest_update import cases, update_problem

GPU = "/device:CPU:1"
KIND = "NVIDIA Unknown"
A = np.full((2, 3), 0.5, "float16")


@pytest.fixture(autouse=True)
def machine_with_a_gpu(monkeypatch, ops_mode):
    """Kernels for a GPU that are those of the CPU, on a device of its own."""
    ops_mode("native")
    monkeypatch.setattr(selftest, "gpus", lambda: {GPU: KIND})
    monkeypatch.setattr(native, "has_cuda", lambda: True)
    monkeypatch.setattr(
        dispatch, "devices", lambda kind: [GPU] if kind == "GPU" else []
    )
    monkeypatch.delenv(selftest.SWITCH, raising=False)
    selftest.passes.cache_clear()
    yield
    selftest.passes.cache_clear()


def is_on_gpu(tensor):
    return tensor.device.endswith("CPU:1")


@pytest.fixture
def wrong_product(monkeypatch):
    """Makes a change to every product that the GPU computes; returns the calls."""
    ops, calls = native.library(), []

    def become(change):
        class Ops:
            """The library, but for this op."""

            def __getattr__(self, name):
                return getattr(ops, name)

            def keras_mp_fp16_gemm(self, a, **options):
                c = ops.keras_mp_fp16_gemm(a=a, **options)
                calls.append(tf.executing_eagerly() and is_on_gpu(c))
                return change(a, c) if calls[-1] else c

        monkeypatch.setattr(native, "library", functools.cache(Ops))
        return calls

    return become


def with_fp16_sums(a, c):
    """What an FP16 accumulator of the products would lose, about 2^-9 of the sum."""
    return tf.where(c > 1, c * tf.cast(1 - 2**-8, c.dtype), c)


def one_column(a, c):
    """A column that is 0."""
    return c * tf.cast(tf.range(c.shape[1]) > 0, c.dtype)


def fails(a, c):
    raise tf.errors.InternalError(None, None, "no kernel image")


WRONG = {
    "fp16-sums": (with_fp16_sums, r"float16 product of M, K, N = \(.*\) errs by"),
    "one-column": (one_column, r"errs by"),
    "nan": (lambda a, c: c * float("nan"), r"errs by inf times its bound"),
    "failing": (fails, r"A kernel fails: no kernel image"),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_right_products_pass(dtype):
    assert product_problem(GPU, dtype) == ""


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_product_is_turned_off_with_one_warning(change, message, wrong_product):
    calls = wrong_product(change)
    with pytest.warns(UserWarning, match=message) as warned:
        c = keras_mp.ops.fp16_gemm(A, A, transpose_b=True)
    assert len(warned) == 1
    text = str(warned[0].message)
    assert KIND in text and "`keras-mp gpu`" in text and "KERAS_MP_SELFTEST=0" in text
    checked = len(calls)
    assert checked and all(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = keras_mp.ops.fp16_gemm(A, A, transpose_b=True)
    assert len(calls) == checked  # TensorFlow computed both
    for result in (c, again):
        np.testing.assert_array_equal(result, np.full((2, 2), 0.75, "float16"))


def test_a_right_product_is_checked_once_and_used(wrong_product):
    calls = wrong_product(lambda a, c: c)
    for _ in range(2):
        keras_mp.ops.fp16_gemm(A, A, transpose_b=True)
    assert calls.count(False) == 2
    assert calls.index(False) == calls.count(True) > 0  # all checks came first


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_the_check_runs_while_a_step_is_traced(wrong_product, jit_compile):
    calls = wrong_product(lambda a, c: c)

    @tf.function(jit_compile=jit_compile)
    def multiply(a):
        return keras_mp.ops.fp16_gemm(a, a, transpose_b=True)

    np.testing.assert_array_equal(multiply(A), np.full((2, 2), 0.75, "float16"))
    assert calls.count(True) > 0


def test_no_check_where_it_is_switched_off(monkeypatch, wrong_product):
    monkeypatch.setenv(selftest.SWITCH, "0")
    calls = wrong_product(fails)
    keras_mp.ops.fp16_gemm(A, A, transpose_b=True)
    assert calls == [False]


def test_no_check_on_a_gpu_that_was_measured(monkeypatch, wrong_product):
    monkeypatch.setattr(selftest, "MEASURED_GPUS", {KIND})
    calls = wrong_product(fails)
    keras_mp.ops.fp16_gemm(A, A, transpose_b=True)
    assert calls == [False]


def test_another_value_of_the_switch_is_an_error(monkeypatch):
    monkeypatch.setenv(selftest.SWITCH, "no")
    with pytest.raises(ValueError, match="Received: KERAS_MP_SELFTEST='no'"):
        keras_mp.ops.fp16_gemm(A, A, transpose_b=True)


class OnGpu:
    """A variable of a GPU, as far as its place matters."""

    device = "/job:localhost/replica:0/task:0/device:GPU:0"


def test_right_steps_pass():
    assert update_problem(GPU) == ""
    assert dispatch.has_update_kernels([OnGpu()])


STEPS = {"adam": "the rule 'adam'", "coded": "masters and slots in fewer bytes"}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_a_wrong_step_is_turned_off_with_one_warning(monkeypatch, case):
    right = cases()[case]

    def one_number_is_wrong(random):
        """The last bit of the first number of the first variable."""
        results = right(random)
        if is_on_gpu(results[0]):
            bits = results[0].numpy()
            bits.view(f"u{bits.itemsize}")[0] ^= 1
            results[0].assign(bits)
        return results

    monkeypatch.setitem(cases(), case, one_number_is_wrong)
    with pytest.warns(UserWarning, match=f"differs from that on the CPU in {case}"):
        assert not dispatch.has_update_kernels([OnGpu()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not dispatch.has_update_kernels([OnGpu()])
    assert dispatch.has_gemm_kernel(tf.float16)  # the products are checked apart


def test_reductions_on_a_gpu_are_formulas_by_default(monkeypatch):
    monkeypatch.delenv(dispatch.GPU_REDUCTIONS, raising=False)
    monkeypatch.setattr(native, "has_cuda", fails)  # it would warn where there is none
    assert not dispatch.has_reduction_kernels()
    assert batch_normalization.find_kernel("NHWC", 1e-3) is None
    np.testing.assert_array_equal(keras_mp.ops.sum(A), np.float16(3))


def test_right_reductions_pass_and_are_used(monkeypatch):
    monkeypatch.setenv(dispatch.GPU_REDUCTIONS, "kernels")
    assert reduction_problem(GPU) == ""
    assert dispatch.has_reduction_kernels()
    assert batch_normalization.find_kernel("NHWC", 1e-3) is not None


def test_another_choice_of_reductions_is_an_error(monkeypatch):
    monkeypatch.setenv(dispatch.GPU_REDUCTIONS, "yes")
    with pytest.raises(ValueError, match="Received: KERAS_MP_GPU_REDUCTIONS='yes'"):
        keras_mp.ops.sum(A)


def wrong_by(factor, right, index=-1):
    """A case of which one result on the GPU is wrong."""

    def wrong(random, dtype):
        results = list(right(random, dtype))
        if is_on_gpu(results[index]):
            results[index] *= tf.cast(factor, results[index].dtype)
        return results

    return wrong


LESS_OR_NAN = pytest.mark.parametrize(
    "factor", [1 - 2**-6, float("nan")], ids=["less", "nan"]
)


@pytest.mark.parametrize("case", selftest_ops.REDUCTIONS)
@LESS_OR_NAN
def test_a_wrong_reduction_is_turned_off_with_one_warning(monkeypatch, case, factor):
    """The last result on the GPU errs by 2^-6, as one that FP16 sums lose."""
    monkeypatch.setenv(dispatch.GPU_REDUCTIONS, "kernels")
    cases = selftest_ops.REDUCTIONS
    monkeypatch.setitem(cases, case, wrong_by(factor, cases[case]))
    with pytest.warns(UserWarning, match=f"{case} of float16 differs from") as warned:
        assert not dispatch.has_reduction_kernels()
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not dispatch.has_reduction_kernels()
    assert dispatch.has_gemm_kernel(tf.float16)  # the products are checked apart


def test_right_convolutions_pass():
    assert convolution_problem(GPU) == ""


@pytest.mark.parametrize(
    "result", range(4), ids=["y", "FP32-y", "grad-x", "grad-kernel"]
)
@LESS_OR_NAN
def test_a_wrong_convolution_is_told_of(monkeypatch, result, factor):
    (case,) = cases = selftest_ops.CONVOLUTIONS
    monkeypatch.setitem(cases, case, wrong_by(factor, cases[case], result))
    message = "Depthwise convolution of float16 differs from that on the CPU."
    assert convolution_problem(GPU) == message


def test_a_strategy_and_a_tape_do_not_reach_the_check(strategy):
    variable = tf.Variable(1.0)
    with strategy.scope(), tf.device("CPU:0"), tf.GradientTape() as tape:
        assert dispatch.has_update_kernels([OnGpu()])
        y = 2 * variable
    assert tape.watched_variables() == (variable,)
    assert float(tape.gradient(y, variable)) == 2


def test_the_op_has_every_rule_of_the_table():
    with pytest.raises(tf.errors.InvalidArgumentError, match='"sgd", ') as error:
        update.update_variables(
            tf.constant(True),
            [tf.ones(1)],
            [tf.Variable([1.0])],
            [],
            [None],
            [],
            [False],
            rule="none",
            hyperparameters={},
        )
    first_line, _, _ = str(error.value).partition("\n")
    assert set(re.findall(r'"(\w+)"', first_line)) == {"none", *native.update_rules()}
