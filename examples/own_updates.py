"""Code that changes weights itself: SAM, a moving average, a target network.

Each runs with FP32 weights, then twice with 16-bit weights: as one writes it for FP32,
and with FP32 values from `optimizer.fp32_weights`. Prints how far the result is from
FP32's, in percent of the way that the weights or their copies move.
"""

import keras
import numpy as np
import tensorflow as tf

import keras_mp

RATE, RADIUS = 1e-4, 0.05
random = np.random.default_rng(0)
x = random.normal(size=(64, 8)).astype("float32")
y = x[:, :1] * x[:, 1:2] + 0.1


def make_model(policy, start=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", dtype=policy),
            keras.layers.Dense(1, dtype=policy),
        ]
    )
    if start is not None:
        model.set_weights(start)
    return model


# Numbers that FP32, FP16 and bfloat16 all have.
START = [
    np.asarray(tf.cast(tf.cast(weight, "bfloat16"), "float32"))
    for weight in make_model("float32").get_weights()
]


def sharpness_aware(policy, in_fp32, steps=100):
    """Trains with gradients at the weights plus a step uphill of length `RADIUS`."""
    model = make_model(policy, START)
    weights = model.trainable_variables
    optimizer = keras_mp.wrap(keras.optimizers.SGD(RATE))
    optimizer.build(weights)

    def scaled_gradients():
        with tf.GradientTape() as tape:
            error = tf.cast(model(x, training=True), tf.float32) - y
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(error)))
        return tape.gradient(loss, weights)

    def add(moves):
        if in_fp32:
            with optimizer.fp32_weights(weights) as fp32:
                for weight, move in zip(fp32, moves, strict=True):
                    weight.assign_add(move)
        else:
            for weight, move in zip(weights, moves, strict=True):
                weight.assign_add(tf.cast(move, weight.dtype))

    @tf.function
    def step():
        gradients = [tf.cast(each, tf.float32) for each in scaled_gradients()]
        # The loss scale cancels out. After an overflow nothing may move.
        norm = tf.linalg.global_norm(gradients)
        factor = tf.where(tf.math.is_finite(norm), RADIUS / norm, 0.0)
        moves = [tf.math.multiply_no_nan(each, factor) for each in gradients]
        add(moves)
        gradients = scaled_gradients()
        add([-move for move in moves])
        optimizer.apply(gradients, weights)

    for _ in range(steps):
        step()
    return [np.asarray(master) for master in optimizer.master_weights]


def averaged(policy, in_fp32, rate, steps=200):
    """Trains, and moves a second network by `rate` of its distance after each step."""
    model = make_model(policy, START)
    # Its variables are FP32; it computes in 16 bits as the first one does.
    is_half = policy in ("float16", "bfloat16")
    copy = make_model(f"mixed_{policy}" if in_fp32 and is_half else policy, START)
    model.compile(keras_mp.wrap(keras.optimizers.Adam(1e-3)), "mse")
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    for _ in range(steps):
        model.train_on_batch(x, y)
        if in_fp32:
            with optimizer.fp32_weights(model) as weights:
                for average, weight in zip(copy.weights, weights, strict=True):
                    average.assign((1 - rate) * average + rate * weight)
        else:
            for average, weight in zip(copy.weights, model.weights, strict=True):
                average.assign((1 - rate) * average + rate * weight)
    return [np.asarray(tf.cast(weight.value, "float32")) for weight in copy.weights]


ALGORITHMS = {
    "SAM": sharpness_aware,
    "average, decay 0.999": lambda *how, **few: averaged(*how, rate=0.001, **few),
    "target network, 0.005": lambda *how, **few: averaged(*how, rate=0.005, **few),
}


def error(result, expected):
    """Returns the distance of two results in percent of the way from `START`."""

    def norm(ones, others):
        pairs = zip(ones, others, strict=True)
        return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs))

    return 100 * norm(result, expected) / norm(expected, START)


def main():
    print(f"{'error of the movement':24}{'by hand':>10}{'in FP32':>10}")
    for name, run in ALGORITHMS.items():
        expected = run("float32", False)
        for policy in ("float16", "bfloat16"):
            by_hand, in_fp32 = (
                error(run(policy, how), expected) for how in (False, True)
            )
            print(f"{name + ', ' + policy:32}{by_hand:6.1f} %{in_fp32:6.1f} %")


if __name__ == "__main__":
    main()
