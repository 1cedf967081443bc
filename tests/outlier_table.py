"""Prints the table of docs/guides/models_that_overflow.md, in ten minutes or more.

KERAS_MP_OPS=native PYTHONPATH=tests python tests/outlier_table.py
"""

import warnings

import numpy as np
from outlier_models import (
    FAMILIES,
    STEPS,
    LargeGradient,
    batch,
    compiled,
    large_gate,
    large_scores,
    losses,
    losses_after_outliers,
    with_lora,
)

import keras_mp

ROWS = {name: (name, 3e5, {}) for name in FAMILIES} | {
    "Qwen, scores": ("Qwen", 0.0, {"change": large_scores}),
    "Gemma, LoRA, a gate": ("Gemma", 0.0, {"change": large_gate}),
    "Falcon, backward": ("Falcon", 0.0, {"before_logits": LargeGradient}),
    "OPT, LoRA": ("OPT", 3e5, {"change": with_lora}),
    "Llama, LoRA": ("Llama", 3e5, {"change": with_lora}),
    "Gemma3, LoRA": ("Gemma3", 3e5, {"change": with_lora}),
}


def keras_alone(optimizer):
    """Returns the optimizer, which Keras wraps for its dynamic loss scale."""
    return optimizer


PATIENCE = 5


def in_fp16(model, x, y, train=losses):
    """Returns a cell: the loss before and after, and how many steps were skipped."""
    before, after = train(model, x, y)
    skipped = getattr(model.optimizer, "skipped_steps", None)
    cell = f"{before:.4f}, {after:.4f}" if np.isfinite(before) else "NaN"
    return cell if skipped is None or not int(skipped) else f"{cell} ({int(skipped)})"


def row(title, name, outliers, options):
    x, y = batch(name)

    def model(policy="mixed_float16", **more):
        return compiled(name, outliers, policy, **options, **more)

    planned = model()
    plan = keras_mp.plan_precision(planned, x, y)
    cosine = plan.verify(planned, x, y).after.cosine
    cells = [
        title,
        in_fp16(model("float32"), x, y),
        in_fp16(model(wrap=keras_alone), x, y),
        in_fp16(keras_mp.convert(model()), x, y),
        in_fp16(plan.apply(planned), x, y),
        f"{plan.gradient_error:.4f}",
        f"{cosine:.6f}",
        f"{plan.float16_share:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def row_of_late_outliers():
    """Returns the row of outliers that appear after 50 steps: the plan is a callback's.

    The steps that it waits for are skipped, and come in addition to the 8.
    """
    name = "Llama"
    x, y = batch(name)

    def train(model, x, y):
        return losses_after_outliers(model, name, x, y, STEPS)

    planned = compiled(name, 0.0, "mixed_float16")
    callback = keras_mp.PrecisionPlanCallback(patience=PATIENCE)
    steps = STEPS + PATIENCE
    _, after = losses_after_outliers(planned, name, x, y, steps, [callback])
    keras_model = compiled(name, 0.0, "mixed_float16", wrap=keras_alone)
    ours = keras_mp.convert(compiled(name, 0.0, "mixed_float16"))
    found = callback.plan.verify(planned, x, y).after
    cells = [
        "Llama, after 50 steps",
        in_fp16(compiled(name, 0.0, "float32"), x, y, train),
        in_fp16(keras_model, x, y, train),
        in_fp16(ours, x, y, train),
        f"{after:.4f} ({int(planned.optimizer.skipped_steps)})",
        f"{callback.plan.gradient_error:.4f}",
        f"{found.cosine:.6f}",
        f"{callback.plan.float16_share:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of keras-hub's T5, and of its own mask
    for title, arguments in ROWS.items():
        print(row(title, *arguments), flush=True)
    print(row_of_late_outliers())
