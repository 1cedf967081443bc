"""Loops of one's own in PyTorch, whose variables take gradients and change in place."""

import keras
import numpy as np
import pytest
import torch
from backends.problems import (
    assert_snapshot,
    fit,
    one_weight,
    rows_with_an_overflow,
    snapshot,
    value,
    variables_of,
)

import keras_mp
from keras_mp import DynamicLossScale


def step(model, x):
    """A step as PyTorch has it written: outside of `torch.no_grad`."""
    model.zero_grad()
    loss = torch.mean(model(torch.tensor(x)))
    model.optimizer.scale_loss(loss).backward()
    gradients = [weight.value.grad for weight in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    return gradients


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "float32"])
def test_a_loop_of_ones_own(policy):
    momentum = keras.optimizers.SGD(0.25, momentum=0.5)
    model = one_weight(policy, optimizer=momentum)
    tensor = model.weights[0].value
    (gradient,) = step(model, [[1.0], [1.0]])
    assert gradient.dtype == tensor.dtype
    assert gradient.tolist() == [[8.0]]
    everything = variables_of(model.trainable_variables, model.optimizer)
    before = snapshot(*everything)
    step(model, [[1.0], [np.inf]])
    assert_snapshot(before, *everything)
    step(model, [[1.0], [1.0]])
    # 1 - 1/4, then the momentum of 1/8 and another 1/4.
    assert value(model.weights[0]).tolist() == [[0.375]]
    assert value(model.optimizer.loss_scale) == 4.0
    assert value(model.optimizer.skipped_steps) == 1
    # The weight is the tensor it was, and no step holds on to another one's graph.
    assert model.weights[0].value is tensor
    assert tensor.requires_grad
    for variable in [*model.optimizer.variables, *model.optimizer.master_weights]:
        assert variable.value.grad_fn is None, variable.path


# PyTorch's compiler uses what PyTorch deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_a_compiled_step_skips_too():
    model = one_weight(jit_compile=True)
    fit(model, rows_with_an_overflow(where=1), 2)
    assert value(model.weights[0]).tolist() == [[0.5]]
    assert value(model.optimizer.skipped_steps) == 1
    assert value(model.optimizer.loss_scale) == 4.0


def test_masters_take_over_what_is_written_in_place():
    model = one_weight(loss_scale=1)
    step(model, [[1.0]])
    with torch.no_grad():
        model.weights[0].value.fill_(3.0)
    step(model, [[1.0]])
    assert value(model.weights[0]).tolist() == [[2.75]]


def test_gradients_unscaled_to_be_looked_at():
    model = one_weight(loss_scale=8)
    optimizer, weights = model.optimizer, model.trainable_variables
    optimizer.build(weights)
    optimizer.scale_loss(torch.mean(model(torch.tensor([[2.0]])))).backward()
    gradients = optimizer.unscale_gradients([weight.value.grad for weight in weights])
    assert gradients[0].dtype == torch.float32
    assert gradients[0].tolist() == [[2.0]]
    optimizer.apply(gradients, weights)
    assert value(weights[0]).tolist() == [[0.5]]


def test_two_optimizers_share_a_scale():
    # Both losses are scaled before either optimizer has seen an overflow.
    models = [one_weight(loss_scale=DynamicLossScale(8.0)) for _ in range(2)]
    first = models[0].optimizer
    second = keras_mp.wrap(keras.optimizers.SGD(0.25), first)
    first.build(models[0].trainable_variables)
    second.build(models[1].trainable_variables)
    gradients = []
    for model, optimizer, x in zip(models, (first, second), (np.inf, 1.0), strict=True):
        optimizer.scale_loss(torch.mean(model(torch.tensor([[x]])))).backward()
        gradients.append([weight.value.grad for weight in model.trainable_variables])
    first.apply(gradients[0], models[0].trainable_variables)
    second.apply(gradients[1], models[1].trainable_variables)
    assert [value(model.weights[0]).item() for model in models] == [1.0, 0.75]
    assert value(first.loss_scale) == 4.0


def test_export_needs_no_gradients():
    model = one_weight()
    step(model, [[2.0**-12]])
    (exported,) = keras_mp.export_weights(model)
    assert exported.tolist() == [[1 - 2.0**-14]]
