"""Counts the memory that fine-tuning a checkpoint takes, without downloading it.

python memory.py --preset t4
python memory.py --preset t4 --batch 16 --lora 64
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.flags import parse

HERE = Path(__file__).resolve().parent
GB = 1e9
# What a T4 has for a program: 15 GiB.
T4 = 15 * 2**30
DEFAULT_RANK = 8


@dataclass(frozen=True)
class Gemma3:
    """The sizes of a Gemma 3, as keras-hub names them."""

    vocabulary_size: int
    num_layers: int
    hidden_dim: int
    intermediate_dim: int
    num_query_heads: int
    num_key_value_heads: int
    head_dim: int

    @property
    def query_dim(self) -> int:
        return self.num_query_heads * self.head_dim

    @property
    def key_dim(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def weights(self) -> int:
        """The number of weights; the embedding returns the logits, too."""
        attention = 2 * self.hidden_dim * (self.query_dim + self.key_dim)
        feed_forward = 3 * self.hidden_dim * self.intermediate_dim
        norms = 4 * self.hidden_dim + 2 * self.head_dim
        layers = self.num_layers * (attention + feed_forward + norms)
        return (self.vocabulary_size + 1) * self.hidden_dim + layers

    def lora_weights(self, rank: int) -> int:
        """The weights of LoRA on queries and values, as Keras factors them."""
        heads = self.num_query_heads + self.num_key_value_heads
        return self.num_layers * rank * (heads * self.hidden_dim + 2 * self.head_dim)


# The checkpoints of keras-hub that are counted.
CHECKPOINTS = {"gemma3_1b": Gemma3(262_144, 26, 1152, 6912, 4, 1, 256)}


@dataclass(frozen=True)
class Held:
    """Bytes that a layer of Gemma 3 holds for its backward pass, by what they are of.

    As ../../benchmarks/held_bytes.py counts them: for each token and each number of the
    residual stream, the queries, the keys, and the hidden layer; and for each pair of
    tokens and each head. Of the logits, for each token and word: they, they in FP32,
    and the gradient.
    """

    stream: int
    queries: int
    keys: int
    hidden: int
    scores: int
    logits: int

    def bytes(self, model: Gemma3, batch: int, length: int) -> int:
        """Returns what a batch takes."""
        a_token = self.stream * model.hidden_dim + self.hidden * model.intermediate_dim
        a_token += self.queries * model.query_dim + self.keys * model.key_dim
        a_token += self.scores * model.num_query_heads * length
        words = self.logits * model.vocabulary_size
        return batch * length * (model.num_layers * a_token + words)


# keras-hub adds the residual stream of a Gemma 3 in FP32 even in FP16.
FP32 = Held(stream=41, queries=12, keys=16, hidden=28, scores=8, logits=8)
PLANNED = Held(stream=44, queries=12, keys=14, hidden=30, scores=6, logits=10)


@dataclass(frozen=True)
class Setting:
    """What there is of each weight, in bytes.

    Attributes:
        weights: of each weight.
        masters, moments, gradients: of each weight that is trained.
        held: `Held`.
        lora: whether LoRA's weights alone are trained.
    """

    weights: float
    masters: float
    moments: float
    gradients: float
    held: Held
    lora: bool = False


SETTINGS = {
    "fp32, Adam": Setting(4, 0, 8, 4, FP32),
    "mixed, plan, Adam": Setting(2, 4, 8, 2, PLANNED),
    # masters="remainders" and Int8State(exclude=()).
    "mixed, plan, Adam in 8 bits": Setting(2, 2, 2 + 2 / 32, 2, PLANNED),
    # It is given unscaled FP32 gradients, and Keras's keeps a velocity of each weight.
    "mixed, plan, Adafactor": Setting(2, 4, 4, 2 + 4, PLANNED),
    "mixed, plan, SGD": Setting(2, 4, 0, 2, PLANNED),
    "fp32, LoRA": Setting(4, 0, 8, 4, FP32, lora=True),
    "mixed, plan, LoRA": Setting(2, 4, 8, 2, PLANNED, lora=True),
}


def count(
    model: Gemma3, setting: Setting, args: argparse.Namespace
) -> dict[str, float]:
    """Returns the bytes of each kind.

    Args:
        model: `Gemma3`.
        setting: `Setting`.
        args: with `batch`, `length` and `lora`, its rank, or 0 for 8.
    """
    lora = model.lora_weights(args.lora or DEFAULT_RANK) if setting.lora else 0
    trained = lora or model.weights
    return {
        "weights": setting.weights * (model.weights + lora),
        "masters": setting.masters * trained,
        "moments": setting.moments * trained,
        "gradients": setting.gradients * trained,
        "activations": setting.held.bytes(model, args.batch, args.length),
    }


def table(args: argparse.Namespace) -> str:
    """Returns a Markdown table of GB, a setting a row."""
    model = CHECKPOINTS[args.checkpoint]
    counts = {name: count(model, each, args) for name, each in SETTINGS.items()}
    kinds = [*next(iter(counts.values()))]
    rows = [["GB", *kinds, "all", "fits a T4"], ["---"] * (len(kinds) + 3)]
    for name, found in counts.items():
        total = sum(found.values())
        cells = [f"{size / GB:.2f}" for size in (*found.values(), total)]
        rows.append([name, *cells, "yes" if total < T4 else "no"])
    title = f"{args.checkpoint}: {model.weights:,} weights; a batch of {args.batch} x "
    lines = [" | ".join(row) for row in rows]
    return f"{title}{args.length} tokens\n\n" + "\n".join(f"| {x} |" for x in lines)


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse(HERE, ["--preset=t4", *argv])
    if args.checkpoint not in CHECKPOINTS:
        raise ValueError(
            f"The memory of {[*CHECKPOINTS]} is counted. Received: --checkpoint "
            f"{args.checkpoint}. Choose one of these."
        )
    print(table(args))


if __name__ == "__main__":
    main()
