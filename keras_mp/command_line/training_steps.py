"""Training steps of small models, in FP32 and in each recipe of 16 bits, timed."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_mp.optimizer import wrap
from keras_mp.precision.convert import convert


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        name: str, of its row in the table.
        policy: str, the dtype policy of Keras.
        loss_scale: as in `keras_mp.wrap`, or None (default) for the layers and the
            optimizer of Keras.
    """

    name: str
    policy: str
    loss_scale: float | str | None = None


RECIPES = (
    Recipe("float32", "float32"),
    Recipe("mixed_float16 of Keras", "mixed_float16"),
    Recipe("mixed_bfloat16 of Keras", "mixed_bfloat16"),
    Recipe("float16 of keras_mp", "float16", "dynamic"),
    Recipe("bfloat16 of keras_mp", "bfloat16", 1.0),
)
CLASSES = 10


@dataclass(frozen=True)
class Size:
    """Sizes of a model and its batch.

    Attributes:
        batch: int, examples.
        width: int, units or channels.
        length: int, time steps, or pixels along each side; of no use to `dense`.
    """

    batch: int
    width: int
    length: int = 1


@dataclass(frozen=True)
class Timing:
    """What was measured of a recipe.

    Attributes:
        recipe: `Recipe`.
        step_ms: float, the median time of a training step without XLA, in milliseconds.
        xla_step_ms: float, the same with XLA.
        weights_bytes: int, of the model's variables.
        optimizer_bytes: int, of the optimizer's variables, masters among them.
        steps: int, how many were timed.
    """

    recipe: Recipe
    step_ms: float
    xla_step_ms: float
    weights_bytes: int
    optimizer_bytes: int
    steps: int

    @property
    def fastest_ms(self) -> float:
        """The time of the faster of the two ways."""
        return min(self.step_ms, self.xla_step_ms)


def dense(size: Size) -> Any:
    """Returns inputs and outputs of four fully connected layers."""
    x = inputs = keras.Input((size.width,))
    for _ in range(4):
        x = layers.Dense(size.width, "relu")(x)
    return inputs, x


def convolution(size: Size) -> Any:
    """Returns inputs and outputs of three convolutions with batch normalization."""
    x = inputs = keras.Input((size.length, size.length, size.width))
    for _ in range(3):
        x = layers.Conv2D(size.width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return inputs, layers.GlobalAveragePooling2D()(x)


def lstm(size: Size) -> Any:
    """Returns inputs and outputs of an LSTM over some time steps."""
    inputs = keras.Input((size.length, size.width))
    # The default, an orthogonal matrix, TensorFlow cannot make in bfloat16.
    return inputs, layers.LSTM(size.width, recurrent_initializer="he_normal")(inputs)


def transformer(size: Size) -> Any:
    """Returns inputs and outputs of a Transformer block."""
    inputs = keras.Input((size.length, size.width))
    attended = layers.MultiHeadAttention(4, size.width // 4)(inputs, inputs)
    x = layers.LayerNormalization()(layers.Add()([inputs, attended]))
    inner = layers.Dense(size.width)(layers.Dense(4 * size.width, "gelu")(x))
    x = layers.LayerNormalization()(layers.Add()([x, inner]))
    return inputs, layers.GlobalAveragePooling1D()(x)


BLOCKS = {
    "dense": dense,
    "convolution": convolution,
    "LSTM": lstm,
    "Transformer": transformer,
}


def time_recipes(
    block: Callable[[Size], Any],
    size: Size,
    steps: int,
    seconds: float,
    recipes: Sequence[Recipe] = RECIPES,
) -> list[Timing]:
    """Times steps of a block in each recipe, without XLA and with it, in turns.

    In each round all models step one after the other, so that what else the machine
    does slows all of them.

    Args:
        block: one of `BLOCKS`.
        size: `Size`.
        steps: int, how many steps of each recipe are timed.
        seconds: float, after which no further round begins; three there are at least.
            Tracing and compiling do not count.
        recipes: sequence of `Recipe`; default all.
    """
    models = {
        (recipe, xla): make_model(block, size, recipe, xla)
        for recipe in recipes
        for xla in (False, True)
    }
    batch = make_batch(next(iter(models.values())), size)
    for model in models.values():
        for _ in range(2):  # one that compiles, and one that warms up
            model.train_on_batch(*batch)
    end = time.monotonic() + seconds
    times: dict[tuple[Recipe, bool], list[float]] = {way: [] for way in models}
    rounds = 0
    while rounds < steps and (rounds < 3 or time.monotonic() < end):
        for way, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(*batch)
            times[way].append(1e3 * (time.perf_counter() - start))
        rounds += 1
    return [
        Timing(
            recipe,
            statistics.median(times[recipe, False]),
            statistics.median(times[recipe, True]),
            _bytes(models[recipe, False].variables),
            _bytes(models[recipe, False].optimizer.variables),
            rounds,
        )
        for recipe in recipes
    ]


def make_model(
    block: Callable[[Size], Any], size: Size, recipe: Recipe, xla: bool | str = "auto"
) -> Any:
    """Returns a block with its last layer, compiled as the recipe says.

    Args:
        block: one of `BLOCKS`.
        size: `Size`.
        recipe: `Recipe`.
        xla: bool, or "auto" (default) for what Keras does, as in `Model.compile`.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(recipe.policy)
    try:
        inputs, x = block(size)
        model = keras.Model(inputs, layers.Dense(CLASSES, dtype="float32")(x))
        optimizer = keras.optimizers.Adam()
        if recipe.loss_scale is not None:
            convert(model)
            optimizer = wrap(optimizer, loss_scale=recipe.loss_scale)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Which scales the loss under mixed_float16.
        model.compile(optimizer, loss, jit_compile=xla)
    finally:
        keras.config.set_dtype_policy(policy)
    return model


def make_batch(model: Any, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs and labels."""
    rng = np.random.default_rng(0)
    shape = (size.batch, *model.inputs[0].shape[1:])
    x = rng.normal(size=shape).astype("float32")
    return x, rng.integers(0, CLASSES, size.batch)


def _bytes(variables: Sequence[Any]) -> int:
    import tensorflow as tf

    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
