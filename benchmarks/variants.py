"""What a training step is made of: FP32, mixed precision as Keras has it, and ours."""

import keras

import keras_mp
from keras_mp.ops.kernels.dispatch import multiplies_bfloat16

# The dtype policy, and whether layers and optimizer are ours.
VARIANTS = {
    "FP32": ("float32", False),
    "Keras, mixed_float16": ("mixed_float16", False),
    "Keras, mixed_bfloat16": ("mixed_bfloat16", False),
    "ours, mixed_float16": ("mixed_float16", True),
    "ours, float16": ("float16", True),
    "ours, mixed_bfloat16": ("mixed_bfloat16", True),
    "ours, bfloat16": ("bfloat16", True),
}
# Ours in float16; of several replicas, each holds the state of some weights.
SHARDED = "ours, shard_state"


def parts(variant):
    """Returns the dtype policy, and whether layers and optimizer are ours."""
    return VARIANTS["ours, float16" if variant == SHARDED else variant]


def goal(variant):
    """Returns the ratio to the time in FP32 that a variant is to stay below."""
    policy, is_ours = parts(variant)
    if not is_ours:
        return float("inf")
    fast = "bfloat16" in policy and multiplies_bfloat16()
    return 0.65 if fast else 1.0


def compiled(make_parts, variant, xla=False):
    """Returns a model that is ready to train, and a batch for it.

    Args:
        make_parts: returns model, optimizer, loss and batch; see training_models.py.
        variant: one of `VARIANTS`, or `SHARDED`.
        xla: whether XLA compiles its steps.
    """
    policy, is_ours = parts(variant)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model, optimizer, loss, batch = make_parts()
    if is_ours:
        keras_mp.convert(model)
        optimizer = keras_mp.wrap(optimizer, shard_state=variant == SHARDED)
        if isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
            ours = keras_mp.losses.SparseCategoricalCrossentropy
            loss = ours.from_config(loss.get_config())
    else:
        keras_mp.to_keras(model)  # the translator comes with layers of ours
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss, jit_compile=xla)
    return model, batch


def make_step(make_parts, variant, xla=False):
    """Returns a function without arguments: a training step of such a model."""
    model, batch = compiled(make_parts, variant, xla)
    return lambda: model.train_on_batch(*batch)
