"""What does `convert` do to the error and to the time of a step of whole models?

`python benchmarks/convert.py` prints a Markdown table: a model of each family of
`keras.applications`, with random weights and small images, backbones of keras-hub where
it is installed, and models as users write them. The error is the largest one of an
output in inference, over the largest output in FP32, under `mixed_float16`. The time is
that of the forward and backward pass outside of XLA, or of the whole step of a model
that has its own. Names as arguments choose models; `--rounds` is how many steps count,
and `--size` another one of the images.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import importlib.util
import warnings

import keras
import numpy as np
import own_models
import tensorflow as tf
from machine import machine, medians

import keras_mp

# The size of the images.
APPLICATIONS = {
    "ConvNeXtTiny": 64,
    "DenseNet121": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "NASNetMobile": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "VGG16": 64,
    "Xception": 71,
}
SIZES = {
    "vocabulary_size": 1000,
    "num_layers": 2,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
}
ENCODER = SIZES | {"num_heads": 4, "max_sequence_length": 128}
GROUPED = SIZES | {"num_query_heads": 4, "num_key_value_heads": 2}
BACKBONES = {
    "Bert": ENCODER,
    "Roberta": ENCODER,
    "DistilBert": ENCODER,
    "Albert": ENCODER | {"embedding_dim": 128},
    "DebertaV3": ENCODER | {"bucket_size": 64},
    "GPT2": ENCODER,
    "OPT": ENCODER,
    "Bart": ENCODER,
    "Bloom": SIZES | {"num_heads": 4},
    "Mistral": GROUPED,
    "Llama": GROUPED,
    "Gemma": GROUPED | {"head_dim": 64},
    "ViT": {
        "image_shape": (64, 64, 3),
        "patch_size": 8,
        "num_layers": 2,
        "num_heads": 4,
        "hidden_dim": 256,
        "mlp_dim": 1024,
    },
}
OWN = {
    "TransformerBlock": own_models.transformer_block,
    "Autoencoder": own_models.autoencoder,
    "GAN": own_models.gan,
}
# What wraps an optimizer.
VERSIONS = {
    "FP32": lambda optimizer: optimizer,
    "Keras": keras.optimizers.LossScaleOptimizer,
    "ours": keras_mp.wrap,
}


def image_model(name):
    shape = (APPLICATIONS[name], APPLICATIONS[name], 3)
    application = getattr(keras.applications, name)
    model = application(weights=None, input_shape=shape, classes=10)
    return model, tf.random.uniform((4, *shape), 0, 255, seed=1)


def backbone(name):
    import keras_hub

    model = getattr(keras_hub.models, f"{name}Backbone")(**BACKBONES[name])
    if "image_shape" in BACKBONES[name]:
        return model, tf.random.uniform((4, 64, 64, 3), -1, 1, seed=1)
    tokens = tf.random.uniform((4, 128), 0, 1000, "int32", seed=1)
    values = {
        "token_ids": tokens,
        "padding_mask": tf.ones_like(tokens),
        "segment_ids": tf.zeros_like(tokens),
    }
    # Of an encoder and a decoder, each has its own.
    kinds = {key: key.split("coder_")[-1] for key in model.input}
    return model, {key: values[kind] for key, kind in kinds.items()}


def made(name, version, weights):
    """Returns a version of a model, with these weights or its own, and inputs."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    policy = "float32" if version == "FP32" else "mixed_float16"
    keras.config.set_dtype_policy(policy)
    if name in OWN:
        model, inputs = OWN[name]()
    else:
        model, inputs = (image_model if name in APPLICATIONS else backbone)(name)
    if weights is not None:
        model.set_weights(weights)
    if version == "ours":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the table has what is left
            keras_mp.convert(model)
    if hasattr(model, "compile_with"):
        model.compile_with(VERSIONS[version])
    return model, inputs


def step_of(model, inputs):
    """Returns a function without arguments: a forward and a backward pass, or more."""
    if model.compiled:
        return lambda: model.train_on_batch(inputs)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(inputs, training=True))
            loss = sum(tf.reduce_sum(tf.cast(y, "float32") ** 2) for y in outputs)
        return tape.gradient(loss, model.trainable_variables)

    return step


def row(name, rounds):
    weights, outputs, steps = None, {}, []
    for version in VERSIONS:
        model, inputs = made(name, version, weights)
        weights = weights or model.get_weights()
        infer = tf.function(lambda model=model, inputs=inputs: model(inputs))
        outputs[version] = [np.float64(y) for y in keras.tree.flatten(infer())]
        steps.append(step_of(model, inputs))
    times = dict(zip(VERSIONS, medians(steps, rounds), strict=True))
    report = keras_mp.conversion_report(model)

    def error(version):
        return max(
            np.max(np.abs(y - exact)) / np.max(np.abs(exact))
            for y, exact in zip(outputs[version], outputs["FP32"], strict=True)
        )

    left = (
        ", ".join(sorted({f"`{cls}`" for cls, _ in report.not_converted})) or "nothing"
    )
    return (
        f"| {name} | {sum(report.converted.values())} | {left} | "
        f"{error('Keras'):.1e} | {error('ours'):.1e} | {times['FP32']:.0f} | "
        f"{times['Keras']:.0f} | {times['ours']:.0f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*APPLICATIONS, *OWN]
    if importlib.util.find_spec("keras_hub"):
        names += BACKBONES
    parser.add_argument("names", nargs="*", default=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int)
    arguments = parser.parse_args()
    if arguments.size:
        APPLICATIONS.update(dict.fromkeys(APPLICATIONS, arguments.size))
    print(machine(), end="\n\n")
    print(
        "| model | converted | left | error, Keras | keras_mp "
        "| FP32, ms | Keras | keras_mp |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.names:
        print(row(name, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
