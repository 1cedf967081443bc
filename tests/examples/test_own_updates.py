"""SAM, averages and target networks: FP32 values keep what 16 bits round away."""

import contextlib

import own_updates
import pytest

STEPS = 50


@pytest.mark.slow
@pytest.mark.xslow_except("*-float16")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", own_updates.ALGORITHMS)
def test_fp32_values_follow_fp32(name, policy):
    run = own_updates.ALGORITHMS[name]
    expected = run("float32", False, steps=STEPS)
    warns = (
        pytest.warns(UserWarning, match="assigns 2 times to")
        if name == "SAM"
        else contextlib.nullcontext()
    )
    with warns:
        by_hand = own_updates.error(run(policy, False, steps=STEPS), expected)
    in_fp32 = own_updates.error(run(policy, True, steps=STEPS), expected)
    # Gradients of weights and activations in bfloat16 err by a few times 2^-8.
    assert in_fp32 < 4 * 100 * 2**-8
    assert by_hand > 5 * in_fp32
