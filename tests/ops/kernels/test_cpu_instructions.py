"""KERAS_MP_CPU_ISA lowers the instruction set of the kernels for a CPU.

The library reads it once, so each name is tried in a process of its own.
"""

import os
import subprocess
import sys

import pytest

from keras_mp.ops.kernels import native

NAMES = ("portable", "neon", "avx2", "avx512", "avx512_bf16", "amx_bf16", "amx_fp16")
NEVER_RUN = {"amx_fp16"}  # on a machine; chosen by name alone

# 0.1 is 0.0999755859375 in float16, and 4096 of them are 409.5 exactly.
MULTIPLY = """
import numpy as np, tensorflow as tf
from keras_mp.ops import build_info, fp16_gemm
from keras_mp.ops.kernels import native
print("cpu:", build_info()["cpu"])
a, b = np.full((3, 4096), 1.0, "float16"), np.full((4096, 17), 0.1, "float16")
c = fp16_gemm(a, b)
assert c.dtype == tf.float16 and (c.numpy() == np.float16(409.5)).all(), c
print("used:", native.cpu_instructions())
"""

# Without Python's check, as in a SavedModel that is served, the kernels refuse.
REFUSE = """
import tensorflow as tf
from keras_mp.ops import fp16_gemm
from keras_mp.ops.kernels import native
x = tf.zeros((2, 2), "float16")
try:
    fp16_gemm(x, x)
except ValueError as error:
    print(error)
ops = tf.load_op_library(str(native.LIBRARY))
calls = {
    "gemm": lambda: ops.keras_mp_fp16_gemm(a=x, b=x, alpha=1.0, bias=[]),
    "rows": lambda: ops.keras_mp_softmax(x=x),
    "pool": lambda: ops.keras_mp_average_pool(
        x=x[None, None, :, :, None], window=[1] * 3, strides=[1] * 3, padding="valid"
    ),
    "conv": lambda: ops.keras_mp_depthwise_conv(
        x=x[None, :, :, None],
        kernel=tf.zeros((1, 1, 1, 1)),
        bias=[],
        strides=[1] * 2,
        dilations=[1] * 2,
        padding="valid",
        Tout="float16",
    ),
    "attention": lambda: ops.keras_mp_attention(
        query=x[None, None],
        key=x[None, None],
        value=x[None, None],
        mask=[],
        seed=[],
        scale=1.0,
        is_causal=False,
    ),
    "logits": lambda: ops.keras_mp_logit_statistics(
        inputs=x, kernel=x, targets=[0, 1], bias=[], transpose=False, soft_cap=0.0
    ),
    "histogram": lambda: ops.keras_mp_exponent_histogram(x=x),
    "update": lambda: ops.keras_mp_unscale_gradients(
        scale=1.0, gradients=[x], count=1, compute_sum_of_squares=False
    ),
}
for name, call in calls.items():
    try:
        call()
    except tf.errors.UnimplementedError as error:
        assert "KERAS_MP_CPU_ISA" in str(error)
    else:
        raise AssertionError(name)
"""


def run(program, name):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"KERAS_MP_OPS": "native", "KERAS_MP_CPU_ISA": name},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_cpu_has_the_portable_kernels_and_the_fastest_are_the_default():
    supported = native.supported_cpu_instructions()
    assert supported[0] == "portable"
    assert set(supported) <= set(NAMES)
    fastest = [name for name in supported if name not in NEVER_RUN][-1]
    chosen = os.environ.get("KERAS_MP_CPU_ISA") or fastest
    assert native.cpu_instructions() == chosen


@pytest.mark.slow
@pytest.mark.xslow_except("portable")
@pytest.mark.parametrize("name", native.supported_cpu_instructions())
def test_a_set_that_this_cpu_has_is_used(name):
    lines = [line.split(":", 1) for line in run(MULTIPLY, name).splitlines()]
    told = {key: text.strip() for key, text in lines}
    assert told["cpu"] == told["used"] == name


@pytest.mark.slow
def test_another_one_is_an_error():
    message = run(REFUSE, "AVX2")
    assert "Received: KERAS_MP_CPU_ISA='AVX2'" in message
    assert str(native.supported_cpu_instructions()) in message
