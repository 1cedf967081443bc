"""Saved files as text, and the models in those that version 0.1 saved before its move.

The library then lay flat in `keras_mp/`, at commit cf59369. `tests/saved/` has what it
saved there, made by

    PYTHONPATH=TREE_OF_CF59369 KERAS_MP_OPS=native python tests/saved_files.py

The archives are written out, since the repository holds no binary files: configs as
they are, arrays as JSON. Every number is exact: the shortest decimal that names one
FP32 or FP16 number is read back as that number.
"""

import functools
import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

import keras_mp

FOLDER = Path(__file__).parent / "saved"
WEIGHTS = "model.weights.h5"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


# Arrays as JSON.


def array_to_json(array):
    """`[dtype, shape, values]`; what JSON has no numbers for goes as unsigned ints."""
    array = np.asarray(array)
    dtype = array.dtype.str
    if array.dtype.kind == "V":  # bfloat16, or its bytes as NumPy reads them
        dtype = f"|V{array.dtype.itemsize}"
        array = array.view(dtype.replace("|V", "u"))
    if array.dtype.kind in "SO":
        return [dtype, list(array.shape), [x.decode() for x in array.ravel()]]
    shortest = float if array.dtype == "float64" else lambda x: float(str(x))
    as_number = shortest if array.dtype.kind == "f" else int
    return [dtype, list(array.shape), [as_number(x) for x in array.ravel()]]


def array_from_json(text):
    dtype, shape, values = text
    stored = dtype.replace("|V", "u") if dtype.startswith("|V") else dtype
    return np.array(values, stored).view(dtype).reshape(shape)


def write_json(path, value):
    """Writes a line for each entry, so that a diff shows which one changed."""
    short = functools.partial(json.dumps, separators=(",", ":"))
    lines = (f"{short(k)}:{short(v)}" for k, v in value.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_json(path):
    return json.loads(path.read_text())


# A .keras archive: config.json and metadata.json, and an HDF5 file of the weights.


def keras_to_text(path, folder):
    with zipfile.ZipFile(path) as archive:
        for name in ("config.json", "metadata.json"):
            (folder / name).write_bytes(archive.read(name))
        entries = {}

        def add(name, entry):
            is_array = isinstance(entry, h5py.Dataset)
            array = array_to_json(entry[()]) if is_array else None
            entries[name] = [dict(entry.attrs), array]

        with h5py.File(io.BytesIO(archive.read(WEIGHTS))) as file:
            file.visititems(add)
        write_json(folder / "weights.json", entries)


def keras_from_text(folder, path):
    weights = io.BytesIO()
    with h5py.File(weights, "w") as file:
        for name, (attributes, array) in read_json(folder / "weights.json").items():
            if array is None:
                entry = file.require_group(name)
            else:
                entry = file.create_dataset(name, data=array_from_json(array))
            entry.attrs.update(attributes)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("config.json", "metadata.json"):
            archive.write(folder / name, name)
        archive.writestr(WEIGHTS, weights.getvalue())


# A file of keras_mp.Checkpoints: arrays by name, and a checksum in its own name.


def npz_to_text(path, text):
    with np.load(path) as archive:
        write_json(text, {name: array_to_json(archive[name]) for name in archive.files})


def npz_from_text(text, folder, number):
    arrays = {name: array_from_json(each) for name, each in read_json(text).items()}
    content = io.BytesIO()
    np.savez(content, **arrays)
    checksum = hashlib.sha256(content.getvalue()).hexdigest()[:16]
    (folder / f"{number:09d}-{checksum}.npz").write_bytes(content.getvalue())


# A tf.train.Checkpoint: tensors by name, and the graph of objects that names them.


def checkpoint_to_text(prefix, text):
    reader = tf.train.load_checkpoint(prefix)
    tensors = {}
    for name in sorted(reader.get_variable_to_shape_map()):
        value = reader.get_tensor(name)
        if name == OBJECT_GRAPH:
            graph = TrackableObjectGraph.FromString(value)
            tensors[name] = json_format.MessageToDict(graph)
        else:
            tensors[name] = array_to_json(value)
    write_json(text, tensors)


def checkpoint_from_text(text, prefix):
    tensors = read_json(text)
    graph = json_format.ParseDict(tensors.pop(OBJECT_GRAPH), TrackableObjectGraph())
    values = {OBJECT_GRAPH: tf.constant(graph.SerializeToString())}
    values |= {name: array_from_json(each) for name, each in tensors.items()}
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.convert_to_tensor(value) for value in values.values()],
    )


# The models.

INPUT = (4, 4, 2)
STEPS, MORE_STEPS = 5, 3


def layers_model():
    """A layer of each folder of `keras_mp/layers`, under all four 16-bit policies."""
    keras.utils.set_random_seed(0)
    layers = keras_mp.layers
    inputs = keras.Input(INPUT)
    x = layers.Conv2D(2, 1, dtype="mixed_float16", name="conv")(inputs)
    x = layers.BatchNormalization(dtype="mixed_float16", name="batch_norm")(x)
    x = layers.AveragePooling2D(2, dtype="float16", name="pooling")(x)
    x = keras.layers.Reshape((4, 2), dtype="float16", name="positions")(x)
    normal = layers.LayerNormalization(dtype="float16", name="layer_norm")(x)
    mixed = layers.MultiHeadAttention(2, 2, dtype="float16", name="attention")
    x = layers.Add(dtype="float16", name="sum")([x, mixed(normal, normal)])
    x = layers.Dense(3, dtype="mixed_bfloat16", name="bfloat16_dense")(x)
    x = layers.Activation("tanh", dtype="bfloat16", name="tanh")(x)
    x = layers.LSTM(2, dtype="mixed_float16", name="lstm")(keras_mp.ops.cumsum(x, 1))
    wide = keras.initializers.VarianceScaling(20)
    x = layers.Dense(3, dtype="bfloat16", kernel_initializer=wide, name="logits")(x)
    model = keras.Model(inputs, layers.Softmax(dtype="float16", name="softmax")(x))
    rule = keras_mp.DynamicLossScale(2.0**10, growth_interval=4, hysteresis=2)
    # By default named so since Keras 3.15, and adamw before.
    inner = keras.optimizers.AdamW(2**-4, clipnorm=1.0, name="adam_w")
    optimizer = keras_mp.wrap(inner, rule, rounding="stochastic", seed=3)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def batches(count, first=0):
    """Inputs and outputs; the second batch of all overflows."""
    rng = np.random.default_rng(first)
    x = rng.normal(0, 3, size=(count, 8, *INPUT)).astype("float32")
    y = np.eye(3, dtype="float32")[rng.integers(3, size=(count, 8))]
    if not first:
        y[1, 0, 0] = np.inf
    return zip(x, y, strict=True)


def train(model, count, first=0):
    for x, y in batches(count, first):
        model.train_on_batch(x, y)


def predictions(model):
    ((x, _),) = batches(1, first=100)
    return model.predict_on_batch(x)


def summary(model):
    """What a model answers and where it stands."""
    optimizer = model.optimizer
    return {
        "predictions": array_to_json(predictions(model)),
        "iterations": int(optimizer.iterations),
        "loss_scale": float(optimizer.loss_scale),
        "skipped_steps": int(optimizer.skipped_steps),
    }


@keras.saving.register_keras_serializable(package="saved_files")
class Players(keras.Model):
    """Two players of one weight each, whose optimizers share a loss scale."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        player = {"use_bias": False, "kernel_initializer": "ones", "dtype": "float16"}
        self.first = keras_mp.layers.Dense(1, name="first", **player)
        self.second = keras_mp.layers.Dense(1, name="second", **player)

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)
        self.built = True

    def compile(self, first_optimizer, second_optimizer):
        super().compile(optimizer=None)
        self.optimizers = [first_optimizer, second_optimizer]
        for player, optimizer in zip(self.players(), self.optimizers, strict=True):
            optimizer.build(player.trainable_variables)

    def players(self):
        return self.first, self.second

    def get_compile_config(self):
        return {"optimizers": keras.saving.serialize_keras_object(self.optimizers)}

    def compile_from_config(self, config):
        self.compile(*keras.saving.deserialize_keras_object(config["optimizers"]))

    def train_step(self, data):
        for player, optimizer in zip(self.players(), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_sum(player(data)))
            weights = player.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def players_model():
    model = Players()
    model.build((None, 1))
    rule = keras_mp.DynamicLossScale(8.0, growth_interval=4)
    second = keras_mp.wrap(keras.optimizers.SGD(0.25, momentum=0.5), rule)
    first = keras_mp.wrap(keras.optimizers.SGD(0.25, use_ema=True), second)
    model.compile(first, second)
    return model


def train_players(model, count):
    model.fit(np.full((count, 1), 0.5, "float32"), batch_size=1, verbose=0)


def dense_model():
    """For `tf.train.Checkpoint`, whose file names every object that it reaches."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras_mp.layers.Dense(1, name="out")])
    rule = keras_mp.DynamicLossScale(2.0**10, growth_interval=2)
    model.compile(keras_mp.wrap(keras.optimizers.Adam(0.5), rule), "mse")
    return model


def train_dense(model, count):
    for _ in range(count):
        model.train_on_batch(np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))


def checkpoint_of(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def save_all(folder):
    """Writes what `tests/saved/` has."""
    registered = keras.saving.get_custom_objects()
    names = sorted(name for name in registered if name.startswith("keras_mp>"))
    for name in ("layers", "players"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "registered.txt").write_text("\n".join(names) + "\n")

    model = layers_model()
    train(model, STEPS)
    model.save(folder / "model.keras")
    keras_to_text(folder / "model.keras", folder / "layers")
    keras_mp.Checkpoints(folder).save(STEPS, model)
    (path,) = folder.glob("*.npz")
    npz_to_text(path, folder / "layers" / "checkpoint.json")
    expected = {"saved": summary(model)}
    train(model, MORE_STEPS, first=1)
    expected["trained on"] = summary(model)
    write_json(folder / "layers" / "expected.json", expected)

    model = players_model()
    train_players(model, STEPS)
    model.save(folder / "players.keras")
    keras_to_text(folder / "players.keras", folder / "players")

    keras.config.set_dtype_policy("float16")
    model = dense_model()
    train_dense(model, STEPS)
    checkpoint_of(model).write(str(folder / "tf"))
    checkpoint_to_text(str(folder / "tf"), folder / "tf_checkpoint.json")
    for path in (*folder.glob("*.keras"), *folder.glob("*.npz"), *folder.glob("tf.*")):
        path.unlink()


if __name__ == "__main__":
    save_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
