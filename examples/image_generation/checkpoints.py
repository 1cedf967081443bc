"""Judges the checkpoints that runs have kept, which shows how the FID swings.

python checkpoints.py                                   # the runs of compare.py
python checkpoints.py build/image_generation/demo/fp32 --data FILE
"""

import argparse
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from experiments.precision import precision_of
from image_generation import train
from image_generation.gan import GAN
from image_generation.model import discriminator, generator


def load_generator(model: GAN, path: Path) -> None:
    """Sets the weights of the generator to those of a checkpoint."""
    weights = model.generator.variables
    with np.load(path) as file:
        # In the order of `GAN.variables`: the seed of the noise, then the generator.
        values = [file[name] for name in file.files[1 : 1 + len(weights)]]
    for weight, value in zip(weights, values, strict=True):
        weight.assign(value)


def distances(run: Path, data: str | None = None) -> Iterator[tuple[int, float]]:
    """Yields the epochs of the checkpoints of a run, and the FID of its images then.

    Args:
        run: the folder that train.py wrote.
        data: the real images, where they are not those of the run's flag.
    """
    args = Namespace(**json.loads((run / "flags.json").read_text()))
    images = train.load(data or args.data)
    precision = precision_of(args.precision, args.loss_scale)
    for path in sorted((run / "checkpoints").glob("*.npz")):
        keras.config.set_dtype_policy(precision.dtype_policy)
        model = GAN(
            generator(args.size, args.width, args.noise),
            discriminator(args.size, args.width),
        )
        load_generator(model, path)
        generated = train.generate(model, args.generated)
        epoch = int(path.name.partition("-")[0])
        yield epoch, train.judged(args, images, generated)["FID"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kept = sorted(Path("build/image_generation/demo").glob("*/checkpoints"))
    runs = [folder.parent for folder in kept]
    parser.add_argument("runs", nargs="*", type=Path, default=runs, metavar="RUN")
    parser.add_argument("--data", help="as for train.py; default: that of the run")
    args = parser.parse_args(argv)
    for run in args.runs:
        for epoch, distance in distances(run, args.data):
            print(f"{run.name}, epoch {epoch}: FID {distance:.2f}", flush=True)


if __name__ == "__main__":
    main()
