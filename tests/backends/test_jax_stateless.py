"""The stateless step, as Keras's `fit` and functions under `jax.jit` use it."""

import re
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from backends.problems import (
    assert_same_bits,
    assert_snapshot,
    column,
    fit,
    make_gradients,
    make_weights,
    one_weight,
    snapshot,
    tensors,
    value,
)
from jax import numpy as jnp

import keras_mp
from keras_mp import DynamicLossScale


def values(variables):
    return [variable.value for variable in variables]


def built(weights, *arguments, inner=None):
    optimizer = keras_mp.wrap(inner or keras.optimizers.SGD(0.25), *arguments)
    optimizer.build(weights)
    optimizer.scale_loss(0.0)
    return optimizer


def test_the_variables_are_all_of_the_state_in_one_order():
    kernel = keras.Variable([1.0], dtype="float16", name="kernel")
    bias = keras.Variable([1.0], dtype="float32", name="bias")
    optimizer = built([kernel, bias], inner=keras.optimizers.SGD(0.25, momentum=0.5))
    assert [variable.path.rpartition("/")[2] for variable in optimizer.variables] == [
        "iteration",
        "learning_rate",
        "seed_generator_state",
        "scale",
        "finite_steps",
        "consecutive_skips",
        "skipped_steps",
        "skips_at_minimum",
        "before_scale",
        "before_finite_steps",
        "before_consecutive_skips",
        "before_skipped_steps",
        "before_skips_at_minimum",
        "round",
        "last_round",
        "last_overflow",
        "kernel",
        "iteration",
        "learning_rate",
        "kernel_momentum",
        "bias_momentum",
    ]
    assert optimizer.variables[16] is optimizer.master_weights[0]


@pytest.mark.parametrize("bad", [None, np.nan])
def test_it_changes_no_variable_and_returns_what_apply_makes(bad):
    def adam():
        weights = make_weights("float16")
        return weights, built(
            weights, DynamicLossScale(64.0), inner=keras.optimizers.Adam(0.01)
        )

    gradients = [64 * g for g in make_gradients(0)]
    gradients[0][1, 2] *= bad or 1
    gradients = tensors(gradients, "float16")
    weights, optimizer = adam()
    everything = [*weights, *optimizer.variables]
    before = snapshot(*everything)
    # Not compiled: these are the operations of `apply`, one by one.
    new_weights, new_state = optimizer.stateless_apply(
        values(optimizer.variables), gradients, values(weights)
    )
    assert_snapshot(before, *everything)

    weights, optimizer = adam()
    optimizer.apply(gradients, weights)
    for variable, new in zip(
        [*weights, *optimizer.variables], [*new_weights, *new_state], strict=True
    ):
        assert_same_bits(np.asarray(new), value(variable), variable.path)


def test_it_is_compiled_once_and_waits_for_nothing():
    weights = make_weights("float16")
    average = keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2)
    rule = DynamicLossScale(64.0, growth_interval=2)
    optimizer = built(weights, rule, "stochastic", inner=average)
    traces = []

    def step(state, gradients, weights):
        traces.append(1)
        return optimizer.stateless_apply(state, gradients, weights)

    compiled = jax.jit(step, donate_argnums=(0, 2))
    state, parameters = values(optimizer.variables), values(weights)
    for seed in range(6):
        gradients = make_gradients(seed)
        gradients[0][0, 0] *= np.inf if seed == 2 else 1
        parameters, state = compiled(state, tensors(gradients, "float16"), parameters)
    assert len(traces) == 1
    assert state[6] == 1  # skipped_steps
    # Nor does anything in it call back to Python.
    gradients = tensors(make_gradients(0), "float16")
    assert "callback" not in str(jax.make_jaxpr(step)(state, gradients, parameters))


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_fit_compiles_a_step_once(policy):
    traces, seen = [], []

    def loss(y_true, y_pred):
        traces.append(1)
        return keras.ops.mean(y_pred, axis=-1)

    model = one_weight(policy, DynamicLossScale(8.0, growth_interval=2))
    model.compile(model.optimizer, loss)
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(len(traces))
    )
    fit(model, column(1, 1, np.nan, 1, 1, 1), 1, look, epochs=3)
    assert len(seen) == 18
    assert set(seen) == {seen[0]}


def test_fit_leaves_nothing_of_its_traces_behind():
    with jax.checking_leaks():
        model = one_weight()
        fit(model, column(1, np.nan, 1), 1, keras_mp.LossScaleCallback(patience=2))
    assert value(model.weights[0]).tolist() == [[0.5]]


def test_fit_goes_on_after_averages_were_taken():
    # A buffer that two variables share cannot be donated to the compiled step.
    average = keras.optimizers.SGD(0.25, use_ema=True, ema_momentum=0.5)
    for policy in ("float16", "float32"):
        model = one_weight(
            policy, optimizer=keras.optimizers.SGD.from_config(average.get_config())
        )
        fit(model, column(1, 1), 1)
        assert value(model.weights[0]).tolist() == [[0.625]]
        fit(model, column(1), 1)
        # The average of 0.625 and 0.375.
        assert value(model.weights[0]).tolist() == [[0.5]]


# Loops of one's own.


def loop_of_ones_own(model):
    """A compiled step of the model, written as in Keras's guide for JAX."""
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)

    def scaled_loss(weights, others, state, x):
        outputs, others = model.stateless_call(weights, others, x, training=True)
        with keras.StatelessScope(zip(optimizer.variables, state, strict=True)):
            return optimizer.scale_loss(jnp.mean(outputs)), others

    @jax.jit
    def step(weights, others, state, x):
        gradients, others = jax.grad(scaled_loss, has_aux=True)(
            weights, others, state, x
        )
        weights, state = optimizer.stateless_apply(state, gradients, weights)
        return weights, others, state

    return step


def test_a_loop_of_ones_own_does_what_fit_does():
    rows = column(1, 2, np.inf, 3)
    fitted, looped = (
        one_weight(optimizer=keras.optimizers.Adam(0.125)) for _ in range(2)
    )
    fit(fitted, rows, 1)
    step = loop_of_ones_own(looped)
    state = (
        values(looped.trainable_variables),
        values(looped.non_trainable_variables),
        values(looped.optimizer.variables),
    )
    for row in rows:
        state = step(*state, row[None])
    weights, _, optimizer_state = state
    assert_same_bits(np.asarray(weights[0]), value(fitted.weights[0]))
    for found, expected in zip(
        optimizer_state, fitted.optimizer.variables, strict=True
    ):
        assert_same_bits(np.asarray(found), value(expected), expected.path)


def test_gradients_that_were_unscaled_in_the_step_are_not_again():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = built([weight], 8)

    @jax.jit
    def step(state, gradients, weights):
        scope = keras.StatelessScope(zip(optimizer.variables, state, strict=True))
        with scope:
            gradients = optimizer.unscale_gradients(gradients)
        return *optimizer.stateless_apply(state, gradients, weights), gradients

    for _ in range(2):
        weights, _, unscaled = step(
            values(optimizer.variables), [jnp.full(1, 16.0, "float16")], [weight.value]
        )
        assert unscaled[0].tolist() == [2.0]
        assert weights[0].tolist() == [0.5]


def test_gradients_unscaled_in_another_function_are_refused():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = built([weight], 8)
    unscale = jax.jit(lambda gradient: optimizer.unscale_gradients([gradient]))
    gradients = unscale(jnp.full(1, 16.0, "float16"))
    with pytest.raises(RuntimeError, match="must be called in the same function"):
        optimizer.apply(gradients, [weight])
    assert value(weight).tolist() == [1.0]


def test_two_optimizers_share_a_scale_in_a_compiled_step():
    weights = [keras.Variable([1.0], dtype="float16") for _ in range(2)]
    first = built(weights[:1], DynamicLossScale(8.0))
    second = built(weights[1:], first)
    variables = [*weights, *first.variables]
    variables += [v for v in second.variables if all(v is not u for u in variables)]

    @jax.jit
    def step(state, gradients):
        scope = keras.StatelessScope(zip(variables, state, strict=True))
        with scope:
            first.apply(gradients[:1])
            second.apply(gradients[1:])
        return [scope.get_current_value(variable) for variable in variables]

    gradients = tensors([np.full(1, np.inf), np.full(1, 4.0)], "float16")
    state = step(values(variables), gradients)
    # The first has halved the scale that the second then divides by.
    assert [w.tolist() for w in state[:2]] == [[1.0], [0.75]]
    scale = [v is second.loss_scale for v in variables].index(True)
    assert state[scale] == 4.0
    # One step of both has moved the scale once, and so does the next.
    state = step(state, tensors([np.full(1, np.inf)] * 2, "float16"))
    assert state[scale] == 2.0


def test_the_code_of_the_page_runs():
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = (docs / "guides" / "jax_and_pytorch.md").read_text()
    [code] = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "__main__"}
    exec(code, names)
    assert np.isfinite(names["loss"])
    assert names["state"][0][0].dtype == "float16"
