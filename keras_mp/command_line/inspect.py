"""`keras-mp inspect`: what FP16 does to a saved model, from one batch."""

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_mp.command_line.batch import Batch, inputs_for, read_batch
from keras_mp.command_line.errors import CommandError, check_new
from keras_mp.diagnostics.inspect import inspect
from keras_mp.precision.plan_precision import plan_precision

_LONGEST = 400  # characters of a reason


def run(options: argparse.Namespace) -> bool:
    """Prints the report, and writes the picture, JSON and plan that are asked for.

    Returns:
        bool, whether FP16 has the range for the model.

    Raises:
        CommandError: a file or the model in it is not as it must be.
    """
    if options.picture:
        _check_matplotlib()
        options.picture.parent.mkdir(parents=True, exist_ok=True)
    for output in filter(None, (options.picture, options.json, options.plan)):
        check_new(output)
    batch = read_batch(options.data)
    model = _load(options.model, options.modules)
    shown = (options.loss_scale, options.as_is)
    report = _called(inspect, model, batch, options, *shown)
    print(report)
    if options.picture:
        report.plot(options.picture)
        print(f"wrote {options.picture}")
    if options.json:
        options.json.write_text(report.to_json() + "\n", encoding="utf-8")
        print(f"wrote {options.json}")
    if options.plan:
        plan = _called(plan_precision, model, batch, options)
        plan.save(options.plan)
        print(f"\n{plan}\nwrote {options.plan}")
    return not report.needs_fp32()


def _check_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(
            "`--out` draws with matplotlib. Received: --out, and no matplotlib is "
            "installed. Run pip install 'keras_mp[plots]', or leave out --out."
        )


def _load(path: Path, modules: list[str]) -> keras.Model:
    if not path.is_file():
        suggested = str(path) if path.suffix == ".keras" else "model.keras"
        raise CommandError(
            f"The model must be a file. Received: {path}, not found. Write it with "
            f"model.save({suggested!r})."
        )
    for module in modules:
        _import(module)
    try:
        model = keras.saving.load_model(path)
    except Exception as error:  # of many classes, where a file is no model
        raise CommandError(
            f"Keras must be able to load the model. Received: {path}, which fails with "
            f"{_reason(error)}. "
            "If it has layers, losses or metrics of your own, name the module that "
            "registers them: --import my_layers. A model with a Lambda layer may run "
            "any code: load it in Python, and call keras_mp.inspect(model, x, y)."
        ) from error
    if getattr(model, "optimizer", None) is None:
        raise CommandError(
            "The model must be compiled with an optimizer and a loss before it is "
            f"saved. Received: {path}, not compiled. Call model.compile(optimizer=..., "
            f"loss=...) and model.save({str(path)!r}) again."
        )
    return model


def _import(module: str) -> None:
    # As `python -m` does: a module of the user's lies where the command is called.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise CommandError(
            "`--import` must name a module that Python can import, in this folder or "
            f"in PYTHONPATH. Received: {module}, which fails with: {error}."
        ) from error


def _called(
    function: Callable[..., Any],
    model: keras.Model,
    batch: Batch,
    options: argparse.Namespace,
    *arguments: Any,
) -> Any:
    """Returns what a function of keras_mp makes of a model and a batch."""
    x = inputs_for(model, batch.x)
    try:
        return function(model, x, batch.y, batch.sample_weight, *arguments)
    except Exception as error:  # of many classes: code of the model's own raises it
        raise CommandError(
            f"{_reason(error)}. Received: {options.data} with {batch}. "
            f"{_taken_and_returned(model)}"
        ) from error


def _reason(error: Exception) -> str:
    """Returns an error in one line, without what Keras and TensorFlow put around it.

    Keras sets the reason of an error in a call in bold type, and the configs of all
    layers that contain it before the reason of an error in loading.
    """
    text = str(error).rpartition("Exception encountered: ")[2]
    in_bold = re.search(r"\x1b\[1m(.*)\x1b\[0m", text, re.DOTALL)
    text = in_bold[1] if in_bold else text
    text = re.sub(r"{{.*?}}|\[Op:\w+\] name:|\x1b\[\d*m", "", text)
    text = " ".join(text.split()).rstrip(".")
    if len(text) > _LONGEST:  # an array in the middle
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return f"{type(error).__name__}: {text}"


def _taken_and_returned(model: keras.Model) -> str:
    """Returns a sentence on the shapes of a model; empty where they are not known."""
    if not getattr(model, "inputs", None):
        return ""
    taken = ", ".join(f"{each.name} {each.shape}" for each in model.inputs)
    returned = ", ".join(str(each.shape) for each in model.outputs)
    return f"The model takes {taken}, and returns {returned}."
