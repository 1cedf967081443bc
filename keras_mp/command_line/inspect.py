"""`keras-mp inspect`: what FP16 does to a saved model, from one batch."""

import argparse
import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_mp.command_line.batch import Batch, inputs_for, read_batch
from keras_mp.command_line.errors import CommandError, check_new
from keras_mp.diagnostics.inspect import inspect
from keras_mp.precision_plan.plan_precision import plan_precision


def run(options: argparse.Namespace) -> None:
    """Prints the report, and writes the picture, JSON and plan that are asked for.

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


def _check_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(
            "`--out` draws with matplotlib. Received: --out, and no matplotlib is "
            "installed. Run pip install 'keras_mp[plots]', or leave out --out."
        )


def _load(path: Path, modules: list[str]) -> keras.Model:
    if not path.is_file():
        raise CommandError(
            f"The model must be a file. Received: {path}, not found. Write it with "
            f"model.save({str(path)!r})."
        )
    for module in modules:
        _import(module)
    try:
        model = keras.saving.load_model(path)
    except Exception as error:  # of many classes, where a file is no model
        # Around the reason Keras puts the configs of all layers that contain it.
        reason = str(error).rpartition("Exception encountered: ")[2]
        raise CommandError(
            f"Keras must be able to load the model. Received: {path}, which fails with "
            f"{type(error).__name__}: {textwrap.shorten(reason, 300)}\n"
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
    import tensorflow as tf

    x = inputs_for(model, batch.x)
    try:
        return function(model, x, batch.y, batch.sample_weight, *arguments)
    except (TypeError, ValueError, RuntimeError, tf.errors.OpError) as error:
        message = f"{error}\nReceived: {options.data} with {batch}."
        raise CommandError(message) from error
