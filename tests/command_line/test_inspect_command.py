"""`keras-mp inspect`: models and batches in files, and what is wrong with them."""

import json
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp.command_line.batch import read_batch
from keras_mp.command_line.errors import CommandError
from keras_mp_cli import main

X, Y = np.ones((4, 3), "float32"), np.full((4, 1), 2.0, "float32")


def one_input():
    return keras.Sequential([keras.Input((3,), name="in"), keras.layers.Dense(1)])


def two_inputs(structure):
    left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
    x = keras.layers.Add()([left, right])
    inputs = {"left": left, "right": right} if structure is dict else [left, right]
    outputs = [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)]
    return keras.Model(inputs, outputs)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(model, optimizer="sgd", loss="mse"):
    if optimizer:
        model.compile(keras_mp.wrap(optimizer), loss)
    model.save("model.keras")


def report(*batch, **arguments):
    """What Python gives for the same file."""
    model = keras.saving.load_model("model.keras")
    return keras_mp.inspect(model, *batch, **arguments)


def inspect(*arguments):
    return main(["inspect", "model.keras", "--data", "batch.npz", *arguments])


def failure(capsys, *arguments):
    """What is printed as an error, in one line."""
    assert inspect(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    (line,) = captured.err.splitlines()
    assert len(line) < 1000 and line.isprintable()
    return line.removeprefix("error: ")


def test_the_report_is_that_of_inspect(capsys):
    save(one_input())
    np.savez("batch.npz", x=X, y=Y)
    assert inspect() == 0
    printed = capsys.readouterr().out
    assert printed == f"{report(X, Y)}\n"


def test_its_arguments_are_passed_on(capsys):
    save(one_input())
    weights = np.array([1.0, 2.0, 3.0, 4.0], "float32")
    np.savez("batch.npz", x=X, y=Y, sample_weight=weights)
    assert inspect("--loss-scale", "1024", "--as-is", "--json", "report.json") == 0
    found = keras_mp.Numerics.from_dict(json.loads(Path("report.json").read_text()))
    assert found == report(X, Y, weights, loss_scale=1024.0, as_is=True)
    assert found.loss_scale == 1024


def test_a_plan_is_printed_and_written(capsys):
    keras.config.set_dtype_policy("mixed_float16")
    large = keras.layers.Rescaling(1e5, name="too_large")
    dense = keras.layers.Dense(1, kernel_initializer="ones", name="dense")
    layers = [keras.Input((3,)), dense, large]
    save(keras.Sequential(layers))
    np.savez("batch.npz", x=X, y=Y)
    assert inspect("--plan", "plan.json") == 1  # it exceeds the range of FP16
    plan = keras_mp.PrecisionPlan.load("plan.json")
    assert plan.precisions["too_large"] == "float32"
    assert capsys.readouterr().out.endswith(f"\n{plan}\nwrote plan.json\n")
    assert inspect("--plan", "plan.json") == 2  # it exists


def test_the_picture_is_drawn(folder, capsys):
    save(one_input())
    np.savez("batch.npz", x=X, y=Y)
    assert inspect("--out", "figures/today") == 0
    picture = folder / "figures" / "today" / "exponents.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "wrote figures/today/exponents.png\n" in capsys.readouterr().out


NAMED = {
    "x": {"x": X},
    "numbered": {"x_0": X},
    "named": {"in": X},
}
OF_TWO = {
    "numbered": {"x_0": X, "x_1": 2 * X},
    "named": {"right": 2 * X, "left": X},
}


@pytest.mark.slow_except("x")
@pytest.mark.parametrize("arrays", NAMED.values(), ids=NAMED)
def test_one_input_by_its_name(arrays, capsys):
    save(one_input())
    np.savez("batch.npz", y=Y, **arrays)
    assert inspect() == 0


@pytest.mark.slow_except("*-dict")
@pytest.mark.parametrize("structure", [list, dict])
@pytest.mark.parametrize("arrays", OF_TWO.values(), ids=OF_TWO)
def test_several_inputs_by_names_and_outputs_by_numbers(structure, arrays, capsys):
    save(two_inputs(structure), loss=["mse", "mae"])
    np.savez("batch.npz", y_0=Y, y_1=3 * Y, **arrays)
    assert inspect() == 0
    x = {"left": X, "right": 2 * X} if structure is dict else [X, 2 * X]
    assert capsys.readouterr().out == f"{report(x, [Y, 3 * Y])}\n"


OWN = """
import keras
@keras.saving.register_keras_serializable("mine")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""


def test_a_layer_of_the_users_own_is_imported(folder, capsys, monkeypatch):
    (folder / "my_layers.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    import my_layers

    save(
        keras.Sequential([keras.Input((3,)), my_layers.Twice(), keras.layers.Dense(1)])
    )
    np.savez("batch.npz", x=X, y=Y)
    monkeypatch.delitem(sys.modules, "my_layers")
    keras.saving.get_custom_objects().pop("mine>Twice")
    try:
        message = failure(capsys)
        assert "fails with TypeError: Could not locate class 'Twice'" in message
        assert "name the module that registers them: --import my_layers" in message
        assert inspect("--import", "my_layers") == 0
    finally:
        keras.saving.get_custom_objects().pop("mine>Twice")


def text(path):
    Path(path).write_text("text")


def batch(**arrays):
    return lambda: np.savez("batch.npz", **arrays)


def no_memory(path):
    """Writes a file whose header promises 2^52 numbers."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4503599627370496,)}"
    header += b" " * (117 - len(header)) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", array)
        file.writestr("y.npy", array)


MISSING_ARRAYS = "The file needs the arrays `x` and `y`, or for several inputs"
BAD_BATCHES = {
    "missing": (
        lambda: None,
        "`--data` must be a file. Received: batch.npz, not found. Write it with "
        "np.savez('batch.npz', x=x, y=y).",
    ),
    "text": (
        lambda: text("batch.npz"),
        "must be an .npz file of arrays, without Python objects. Received: batch.npz: "
        "File is not a zip file. Write it with",
    ),
    "objects": (batch(x=np.array([{}]), y=Y), "batch.npz: Object arrays cannot be"),
    "a-model": (
        lambda: one_input().save("m.keras") or Path("m.keras").rename("batch.npz"),
        "it holds other things than arrays",
    ),
    "complex": (batch(x=X * 1j, y=Y), "'x' has the dtype complex64, not real numbers"),
    "dates": (batch(x=X.astype("M8[s]"), y=Y), "'x' has the dtype datetime64[s], not"),
    "no-example": (batch(x=X[:0], y=Y), "'x' has the shape (0, 3), without an example"),
    "too-large": (lambda: no_memory("batch.npz"), "batch.npz: Unable to allocate 16"),
    "no-y": (batch(x=X), "Received: batch.npz with x. Write it with np.savez("),
    "no-x": (batch(y=Y), "Received: batch.npz with y. Write it"),
    "nothing": (batch(), "Received: batch.npz with no array."),
    "both-x": (batch(x=X, x_0=X, y=Y), "Received: batch.npz with x, x_0, y."),
    "other-names": (
        batch(images=X, y=Y),
        "inputs of the model are in. Received: images",
    ),
    "two-for-one": (
        batch(x_0=X, x_1=X, y=Y),
        "Received: 2 of them. Write the file with np.savez(path, y=y, in=...)",
    ),
    "shape": (
        batch(x=np.ones((4, 5), "float32"), y=Y),
        "axis -1 of input shape to have value 3, but received input with shape (4, 5). "
        "Received: batch.npz with x: float32 (4, 5), y: float32 (4, 1). The model "
        "takes in (None, 3), and returns (None, 1).",
    ),
    "rank": (
        batch(x=np.ones((4, 9, 9, 3), "float32"), y=Y),
        "incompatible shape (4, 9, 9, 3). Received: batch.npz with x: float32 "
        "(4, 9, 9, 3), y: float32 (4, 1). The model takes in (None, 3), and returns",
    ),
    "targets": (
        batch(x=X, y=np.ones((5, 1), "float32")),
        "Incompatible shapes: [5,1] vs. [4,1]. Received: batch.npz with x: float32 (4, "
        "3), y: float32 (5, 1). The model takes in (None, 3), and returns (None, 1).",
    ),
    "two-targets": (
        batch(x=X, y_0=Y, y_1=Y),
        "y_true and y_pred have different structures.",
    ),
    "weights": (
        batch(x=X, y=Y, sample_weight=np.ones(7, "float32")),
        "Incompatible shapes: [4] vs. [7]. Received: batch.npz with x: float32 (4, 3), "
        "y: float32 (4, 1), sample_weight: float32 (7,).",
    ),
    "words": (
        batch(x=np.full((4, 3), "a"), y=Y),
        "Cast string to float is not supported. Received: batch.npz with x: <U1 (4, 3)",
    ),
    "not-finite": (
        batch(x=X * np.nan, y=Y),
        "All numbers of the batch must be finite. Received: `x` with NaN",
    ),
}


@pytest.mark.parametrize(("write", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_what_is_no_batch(write, message, capsys):
    save(one_input())
    write()
    assert message in failure(capsys)


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_is_no_traceback(bit, tmp_path):
    path = tmp_path / "batch.npz"
    np.savez_compressed(path, x=np.arange(20, dtype="float32").reshape(5, 4), y=Y)
    good = path.read_bytes()
    outcomes = set()
    for position in range(0, len(good), 3):
        flipped = bytearray(good)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            read_batch(path)
        except CommandError as error:
            outcomes.add(type(error))
        else:
            outcomes.add("read")  # what zip files repeat, and nobody reads
    assert outcomes == {CommandError, "read"}


def test_a_picture_needs_matplotlib(monkeypatch, capsys):
    save(one_input())
    np.savez("batch.npz", x=X, y=Y)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "no matplotlib is installed. Run pip" in failure(capsys, "--out", "figures")
    assert not Path("figures").exists()


@keras.saving.register_keras_serializable("tests")
class Own(keras.layers.Layer):
    """A layer with code of its own."""

    def call(self, x):
        return x


@pytest.mark.parametrize(
    "error", [AttributeError, IndexError, AssertionError, KeyError]
)
def test_an_error_of_a_models_own_code_is_one_line(error, capsys, monkeypatch):
    def call(self, x):
        raise error("the layer at fault")

    save(keras.Sequential([keras.Input((3,)), Own(), keras.layers.Dense(1)]))
    np.savez("batch.npz", x=X, y=Y)
    load = keras.saving.load_model

    def load_model(path):
        model = load(path)
        monkeypatch.setattr(Own, "call", call)
        return model

    monkeypatch.setattr(keras.saving, "load_model", load_model)
    message = failure(capsys)
    assert "the layer at fault" in message and error.__name__ in message
    assert "Received: batch.npz with x: float32 (4, 3)" in message


OTHER_FILES = {
    "a-model-as-data": ("model.keras", "model.keras", "batch.npz"),
    "no-such-data": ("model.keras", "nowhere", "batch.npz"),
    "no-such-npz": ("model.keras", "mine.npz", "mine.npz"),
    "swapped": ("batch.npz", "model.keras", "batch.npz"),
}


@pytest.mark.parametrize(
    ("model", "data", "suggested"), OTHER_FILES.values(), ids=OTHER_FILES
)
def test_no_advice_would_write_over_a_model(model, data, suggested, capsys):
    save(one_input())
    np.savez("batch.npz", x=X, y=Y)
    assert main(["inspect", model, "--data", data]) == 2
    message = capsys.readouterr().err
    assert f"Received: {data}" in message
    assert f"Write it with np.savez({suggested!r}, x=x, y=y)." in message


def lambda_layer():
    layer = keras.layers.Lambda(lambda x: 2 * x)
    return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])


BAD_MODELS = {
    "missing": (
        lambda: None,
        "The model must be a file. Received: model.keras, not found. Write it with "
        "model.save('model.keras').",
    ),
    "text": (lambda: text("model.keras"), "Keras must be able to load the model."),
    "lambda": (lambda: save(lambda_layer()), "call keras_mp.inspect(model, x, y)."),
    "not-compiled": (
        lambda: save(one_input(), optimizer=None),
        "Received: model.keras, not compiled. Call model.compile(optimizer=..., "
        "loss=...) and model.save('model.keras') again.",
    ),
}


@pytest.mark.parametrize(("write", "message"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_what_is_no_model(write, message, capsys):
    np.savez("batch.npz", x=X, y=Y)
    write()
    assert message in failure(capsys)


BAD_OUTPUTS = {
    "json-exists": (["--json", "old"], "Received: old, which exists. Remove it, or"),
    "json-folder": (["--json", "no/a.json"], "Create it: mkdir -p no"),
    "picture-exists": (["--out", "."], "Received: exponents.png, which exists."),
    "picture-in-a-file": (["--out", "old"], "File exists: 'old'"),
    "module": (
        ["--import", "nowhere"],
        "Received: nowhere, which fails with: No module",
    ),
}


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_OUTPUTS.values(), ids=BAD_OUTPUTS
)
def test_what_cannot_be_written_or_imported(arguments, message, capsys, folder):
    save(one_input())
    np.savez("batch.npz", x=X, y=Y)
    text("old")
    text("exponents.png")
    assert message in failure(capsys, *arguments)
    assert (folder / "old").read_text() == (folder / "exponents.png").read_text()
