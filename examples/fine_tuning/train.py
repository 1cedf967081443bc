"""Fine-tunes a causal language model of keras-hub in the precision that you name.

    python train.py --preset demo --precision mixed --plan
    python train.py --preset demo --precision mixed --plan --lora 8

A preset is a JSON file in presets/, and every value in it is also a flag. `pretrain.py`
makes the checkpoint of `demo`; that of `t4` is downloaded. What each precision means is
told in the README.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import keras_hub
from experiments.run import Run
from fine_tuning.data import Tokens, load
from fine_tuning.training import compile_model, said
from language_model.data import split

import keras_mp

HERE = Path(__file__).resolve().parent
OPTIMIZERS = {
    "adafactor": keras.optimizers.Adafactor,
    "adam": keras.optimizers.Adam,
}
CHOICES = {"optimizer": list(OPTIMIZERS)}
PROMPTS = ("This package", "It is a library", "Click the", "Opens a dialog")


def load_checkpoint(args: Any, policy: str) -> tuple[Any, Any]:
    """Returns the model that the flags name, with LoRA if asked for, and its tokenizer.

    Args:
        args: the flags.
        policy: the name of a dtype policy.

    Returns:
        `keras_hub.models.CausalLM`, which is given tokens, and the
        `CausalLMPreprocessor` that makes them.
    """
    if args.checkpoint.startswith("build/") and not Path(args.checkpoint).is_dir():
        raise ValueError(
            "--checkpoint must be a preset of keras-hub, or a folder with one. "
            f"Received: {args.checkpoint}, which does not exist. Make it with "
            "pretrain.py."
        )
    model = keras_hub.models.CausalLM.from_preset(
        args.checkpoint, dtype=policy, preprocessor=None
    )
    preprocessor = keras_hub.models.CausalLMPreprocessor.from_preset(
        args.checkpoint, sequence_length=args.length
    )
    if args.lora:
        model.backbone.enable_lora(args.lora)
    return model, preprocessor


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fine-tunes, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv, CHOICES)
    args = run.args
    if (args.keras or args.plan) and args.precision != "mixed":
        raise ValueError(
            "--keras and --plan are for FP16. Received: --precision "
            f"{args.precision}. Choose --precision mixed."
        )
    if args.keras and args.plan:
        raise ValueError(
            "Plans are those of keras_mp. Received: --keras --plan. Leave one out."
        )
    policy = "mixed_float16" if args.keras else run.dtype_policy
    model, preprocessor = load_checkpoint(args, policy)
    train, test = split(load(args.data), args.held_out, args.seed)
    tokens, held_out = (Tokens.of(texts, preprocessor) for texts in (train, test))
    optimizer = OPTIMIZERS[args.optimizer](args.learning_rate)
    if args.keras:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    elif run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    compile_model(model, optimizer)

    share = float(policy != "float32")
    if args.plan:
        # These lines decide which layers leave FP16.
        plan = keras_mp.plan_precision(model, *tokens.first(args.batch))
        plan.apply(model)
        plan.save(run.out / "plan.json")
        print(plan)
        share = plan.float16_share
    elif not args.keras:
        keras_mp.convert(model)

    evaluate = partial(
        model.evaluate, held_out.batches(args.batch), verbose=0, return_dict=True
    )
    before = evaluate()["perplexity"]
    log = run.fit(
        model,
        tokens.endless_batches(args.batch, args.seed),
        held_out.batches(args.batch),
        on_collapse="warn",  # the rest of the table is to be made, too
    )
    texts = said(model, preprocessor, PROMPTS)
    print(*texts, sep="\n")
    skipped = log[-1].get("skipped_steps")
    if args.keras:
        skipped = args.steps - int(model.optimizer.iterations)
    return run.finish(
        {
            "perplexity before": before,
            "perplexity after": log[-1]["val_perplexity"],
            "FP16 share": share,
        },
        skipped_steps=skipped,
        said=texts,
    )


if __name__ == "__main__":
    main()
