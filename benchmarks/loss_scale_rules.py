"""How many steps each rule of the loss scale skips, on simulated gradients.

    python benchmarks/loss_scale_rules.py [--steps 20000]

The log2 of the largest gradient of a step is a random number, of a standard deviation
of half an octave unless a row says otherwise. A step overflows where that gradient, or
one of an activation that is larger by a factor, exceeds 65,504 at the scale. No model
is trained, and no time is measured: the table is the same on every machine.
"""

import argparse

import numpy as np
import tensorflow as tf

import keras_mp


def cases(steps):
    """Log2 of the largest gradients, and of the factor of those of activations."""
    random = np.random.default_rng(0)
    normal = random.normal(0, 0.5, steps)
    drift = np.linspace(0, 12, steps)
    return {
        "log-normal": (normal, 0),
        "falling by 2^12": (normal - drift, 0),
        "rising by 2^12": (normal + drift - 12, 0),
        "heavy tails (Student, 4 degrees)": (random.standard_t(4, steps) / 2, 0),
        "2^6 times as large in one batch of 500": (
            normal + 6 * (random.random(steps) < 1 / 500),
            0,
        ),
        "activations' 2^8 times as large": (normal, 8),
    }


RULES = {
    "dynamic": keras_mp.DynamicLossScale(),
    "statistical": keras_mp.StatisticalLossScale(),
}


def run(rule, sizes, factor):
    """Returns the skipped steps, and the median of log2 of the scale."""

    def step(state, size):
        finite = size + factor + tf.math.log(state.scale) / np.log(2.0) <= np.log2(
            65504
        )
        return rule.update(state, finite, 2.0**size)

    first = tf.nest.map_structure(tf.convert_to_tensor, rule.initial_state())
    states = tf.function(lambda x: tf.scan(step, x, first))(
        tf.constant(sizes, "float32")
    )
    scales = np.log2(states.scale.numpy())
    return int(states.skipped_steps[-1]), np.median(scales)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    print(f"# Steps of {steps:,} that each rule skips\n")
    print(f"| largest gradients | {' | '.join(RULES)} | log2 of their median scales |")
    print("|---|---|---|---|")
    for name, (sizes, factor) in cases(steps).items():
        found = [run(rule, sizes, factor) for rule in RULES.values()]
        skipped = " | ".join(str(skips) for skips, _ in found)
        medians = ", ".join(f"{scale:g}" for _, scale in found)
        print(f"| {name} | {skipped} | {medians} |")


if __name__ == "__main__":
    main()
