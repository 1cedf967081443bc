"""Trains a small Llama from scratch, and gives it the large numbers of large ones.

    python pretrain.py                 # downloads the text; or --data FILE

Writes a preset of keras-hub, as `keras_hub.models.CausalLM.from_preset` reads it. The
values of presets/pretraining.json are flags: --steps 3000.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import keras_hub
import sentencepiece
from experiments.run import Run
from fine_tuning.data import Tokens, load
from fine_tuning.outliers import enlarge_stream, largest_in_stream
from fine_tuning.training import compile_model, said
from language_model.data import split

HERE = Path(__file__).resolve().parent
# What the tokenizer of a Llama has for padding, and for the two ends of a text.
SPECIAL = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
PROMPTS = ("This package", "It is a library")


def make_tokenizer(texts: Sequence[str], pieces: int) -> Any:
    """Returns a tokenizer that divides words into the pieces that texts have most."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=pieces,
        minloglevel=2,
        **SPECIAL,
    )
    return keras_hub.models.LlamaTokenizer(model.getvalue())


def make_model(args: argparse.Namespace, texts: Sequence[str]) -> Any:
    """Returns the causal language model that the flags describe, with a tokenizer."""
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=args.pieces,
        num_layers=args.layers,
        num_query_heads=args.heads,
        num_key_value_heads=args.key_value_heads,
        hidden_dim=args.width,
        intermediate_dim=args.inner,
    )
    preprocessor = keras_hub.models.LlamaCausalLMPreprocessor(
        make_tokenizer(texts, args.pieces), sequence_length=args.length
    )
    return keras_hub.models.LlamaCausalLM(backbone, preprocessor=preprocessor)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, enlarges the residual stream, writes the preset and result.json."""
    argv = sys.argv[1:] if argv is None else argv
    run = Run(HERE, ["--preset=pretraining", "--precision=fp32", *argv])
    args = run.args
    train, test = split(load(args.data), args.held_out, args.seed)
    train = train[: args.sentences]
    model = make_model(args, train)
    preprocessor, model.preprocessor = model.preprocessor, None
    tokens, held_out = (Tokens.of(texts, preprocessor) for texts in (train, test))
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, args.steps, warmup_target=args.learning_rate, warmup_steps=args.steps // 10
    )
    compile_model(model, keras.optimizers.AdamW(rate, global_clipnorm=1.0))
    log = run.fit(
        model,
        tokens.endless_batches(args.batch, args.seed),
        held_out.batches(args.batch),
    )
    print(*said(model, preprocessor, PROMPTS), sep="\n")

    x, *_ = held_out.first(args.batch)
    factor = enlarge_stream(model.backbone, x, args.outliers)
    largest = largest_in_stream(model.backbone, x)
    after = model.evaluate(held_out.batches(args.batch), verbose=0, return_dict=True)
    print(f"The residual stream times {factor:g}: up to {largest:.3g}")
    model.preprocessor = preprocessor
    model.save_to_preset(str(run.out / "checkpoint"))
    return run.finish(
        {
            "perplexity": log[-1]["val_perplexity"],
            "perplexity with outliers": after["perplexity"],
            "largest in the stream": largest,
        }
    )


if __name__ == "__main__":
    main()
