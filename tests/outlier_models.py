"""Tiny language models of keras-hub's families, with outliers as large ones have.

The outliers are constant, in two channels of the residual stream, with the rest of the
stream at 100. The scales of the norms bring what the layers are given back to what it
was, so that FP32 trains such a model as any other.
"""

import re
from dataclasses import dataclass, field

import keras
import numpy as np

import keras_mp

STEPS = 8
APPEAR_AT = 50
WORDS, LENGTH, CHANNELS, BATCH = 40, 8, 16, 8
STREAM, MELS = 100.0, 8

SIZES = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "hidden_dim": CHANNELS,
    "intermediate_dim": 32,
}
HEADS = SIZES | {"num_heads": 2, "dropout": 0.0}
GROUPED = SIZES | {"num_query_heads": 2, "num_key_value_heads": 1}
GEMMA = GROUPED | {"head_dim": 8}
FALCON = SIZES | {"num_attention_heads": 2}
POSITIONS = HEADS | {"max_sequence_length": LENGTH}
SPEECH = {
    "num_mels": MELS,
    "max_encoder_sequence_length": 2 * LENGTH,
    "max_decoder_sequence_length": LENGTH,
}
LLAMA_WRITERS = r"(attention|feedforward)_output(_dense)?/kernel"
GEMMA_WRITERS = r"(attention_output|ffw_linear)/kernel"
OUTPUT = r"(attention_output|feedforward_output_dense)"
ROOT = CHANNELS**0.5
NONE = r"$^"


@dataclass(frozen=True)
class Family:
    """How a backbone is made, and which of its weights hold its residual stream.

    Attributes:
        arguments: dict, of the backbone.
        writers: pattern of the paths of the matrices that write into the stream.
        norms: pattern of the scales of the norms that read it.
        last_norms: pattern of those of the norms before the logits.
        outliers: pattern of the tables that put them into the stream.
        biases: pattern of the biases that do.
        tables: pattern of the other weights that it begins with.
        task: str, the class of the language model; without one, a Dense layer returns
            the logits.
        tied: bool, whether the embedding returns the logits, too.
        factor: float, by which the backbone multiplies the embedding.
        offset: float, what the norms add to their scales.
        post_norms: pattern of the scales of norms that write into the stream.
        backbone: str, the name of its class, where it is that of another family.
    """

    arguments: dict = field(repr=False)
    writers: str
    norms: str
    last_norms: str
    outliers: str = r"token_embedding/embeddings"
    biases: str = NONE
    tables: str = NONE
    task: str = ""
    tied: bool = False
    factor: float = 1.0
    offset: float = 0.0
    post_norms: str = NONE
    backbone: str = ""


def llama(task, arguments=GROUPED, **options):
    return Family(
        arguments,
        LLAMA_WRITERS,
        r"(attention|feedforward)_layernorm/scale",
        r"sequence_output_layernorm/scale",
        task=task,
        **options,
    )


def gpt2(task):
    return Family(
        POSITIONS,
        r"(attention|feedforward)_output(_dense)?/kernel",
        r"(attention|feedforward)_layer_norm/gamma",
        r"/layer_norm/gamma|^layer_norm/gamma",
        outliers=r"position_embedding/embeddings",
        tables=r"token_embedding/embeddings",
        task=task,
        tied=True,
    )


def gemma(arguments, **options):
    return Family(
        arguments,
        GEMMA_WRITERS,
        r"pre_(attention|ffw)_norm/scale",
        r"final_normalization/scale",
        factor=ROOT,
        offset=1.0,
        **options,
    )


def post_norm(arguments, last_norms):
    """A family whose norms come behind the sums: each is the stream of the next."""
    return Family(
        arguments,
        rf"{OUTPUT}/kernel",
        r"(attention|feedforward)(_layer)?_layer_norm/gamma",
        last_norms,
        outliers=NONE,
        biases=rf"{OUTPUT}/bias",
    )


UNTIED = {"tie_word_embeddings": False}
POST_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
FAMILIES = {
    "Llama": llama("LlamaCausalLM"),
    "T5": Family(
        HEADS,
        r"(attention|layer_\d+)/output_projector/kernel",
        r"layer_\d+/t5_layer_norm(_\d+)?/weight",
        r"output_layer_norm/weight",
    ),
    "Gemma3": gemma(
        GEMMA | POST_NORMS | {"image_size": 16},
        post_norms=r"post_(attention|ffw)_norm/scale",
    ),
    "GPT2": gpt2("GPT2CausalLM"),
    "OPT": gpt2("OPTCausalLM"),
    "Bloom": Family(
        HEADS,
        r"(output_dense|mlp_output_dense)/kernel",
        r"(pre|post)_attention_layernorm/gamma",
        r"final_layernorm/gamma",
        outliers=NONE,
        biases=r"embedding_layernorm/beta",
        tables=r"embedding_layernorm/gamma",
        task="BloomCausalLM",
        tied=True,
    ),
    "Mistral": llama("MistralCausalLM"),
    "Qwen": llama("QwenCausalLM", GROUPED | UNTIED),
    "Qwen3": llama("Qwen3CausalLM", GEMMA | UNTIED),
    "Phi3": Family(
        GROUPED,
        LLAMA_WRITERS,
        r"(pre|post)_attention_layernorm/scale",
        r"sequence_output_layernorm/scale",
        task="Phi3CausalLM",
    ),
    "Falcon": Family(
        FALCON,
        r"(output_dense|dense_4h_to_h)/kernel",
        r"(input|post_attention)_layernorm/gamma",
        r"final_layernorm/gamma",
    ),
    "Gemma": gemma(GEMMA),
    "Gemma2": gemma(
        GEMMA | POST_NORMS,
        post_norms=r"post_(attention|ffw)_norm/scale",
        backbone="Gemma",
    ),
    "Bert": post_norm(POSITIONS, r"_1/feedforward_layer_norm/gamma"),
    "DebertaV3": post_norm(
        POSITIONS | {"bucket_size": 4}, r"_1/feedforward_layer_norm/gamma"
    ),
    "Bart": post_norm(POSITIONS, r"decoder_layer_1/feedforward_layer_norm/gamma"),
    "Whisper": Family(
        HEADS | SPEECH,
        rf"({OUTPUT}|conv_layer_2)/kernel",
        r"(attention|feedforward)(_layer)?_layer_norm/gamma|encoder_layer_norm/gamma",
        r"decoder_layer_norm/gamma",
        outliers=r"position_embedding/embeddings",
        biases=r"conv_layer_2/bias",
        tables=r"token_embedding/embeddings",
    ),
}


def language_model(name, outliers=0.0, change=None, before_logits=None):
    """Returns a model of a family, the same weights each time.

    Args:
        name: str, one of `FAMILIES`.
        outliers: float, the magnitude of the two channels; 0 for the weights that
            keras-hub begins with.
        change: function of the backbone, called at the end, or None.
        before_logits: class of a layer for a family without a task, or None.
    """
    from keras_hub import models

    keras.utils.set_random_seed(0)
    family = FAMILIES[name]
    backbone = getattr(models, f"{family.backbone or name}Backbone")(**family.arguments)
    if family.task:
        model = getattr(models, family.task)(backbone=backbone, preprocessor=None)
    else:
        hidden = backbone.output
        if isinstance(hidden, dict):
            of_decoder = "decoder_sequence_output"
            is_pair = of_decoder in hidden
            hidden = hidden[of_decoder if is_pair else "sequence_output"]
        if before_logits is not None:
            hidden = before_logits()(hidden)
        logits = keras.layers.Dense(WORDS, use_bias=False, name="logits")(hidden)
        model = keras.Model(backbone.input, logits)
    if outliers:
        put_outliers(backbone, name, outliers)
    if change is not None:
        change(backbone)
    return model


def compiled(name, outliers, policy, wrap=keras_mp.wrap, **options):
    """Returns the model of a family, compiled as all of them are."""
    keras.config.set_dtype_policy(policy)
    model = language_model(name, outliers, **options)
    model.compile(
        optimizer=wrap(keras.optimizers.AdamW(1e-3)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=False,
    )
    return model


def losses(model, x, y, steps=STEPS, callbacks=(), eager=False):
    """Returns the loss before and after some steps on one batch.

    Such models take longer to trace than to run: the loss at the end is computed
    eagerly, and with `eager` so are the steps.
    """
    model.run_eagerly = eager
    options = {"batch_size": BATCH, "verbose": 0}
    history = model.fit(
        x, y, epochs=steps, shuffle=False, callbacks=list(callbacks), **options
    )
    after = model.compute_loss(x, y, model(x, training=False), training=False)
    return history.history["loss"][0], float(after)


def losses_after_outliers(model, name, x, y, steps, callbacks=()):
    """Returns the loss once outliers have appeared in a run, and some steps later.

    They appear after `APPEAR_AT` steps on one batch.
    """
    options = {"batch_size": BATCH, "verbose": 0, "shuffle": False}

    def appear(epoch, logs):
        if epoch + 1 == APPEAR_AT:
            put_outliers(model.backbone, name, 3e5)

    outliers = keras.callbacks.LambdaCallback(on_epoch_end=appear)
    history = model.fit(
        x, y, epochs=APPEAR_AT + steps, callbacks=[*callbacks, outliers], **options
    )
    after = model.compute_loss(x, y, model(x, training=False), training=False)
    return history.history["loss"][APPEAR_AT], float(after)


def put_outliers(backbone, name, size):
    """Multiplies the residual stream, and puts constant outliers into it."""
    family = FAMILIES[name]
    spread = np.zeros(CHANNELS, "float32")
    spread[:2] = size, -size
    table = next(
        v for v in backbone.variables if re.search("token_embedding/embed", v.path)
    )
    gain = _gain(family, table)
    # What a norm divides by, with the outliers, and is to divide by.
    scale = np.sqrt(2 * size**2 / CHANNELS + STREAM**2) / STREAM
    begins_with_norm = "norm" in family.tables
    for variable in backbone.trainable_variables:
        old = variable.numpy()

        def has(pattern, path=variable.path):
            return re.search(pattern, path) is not None

        if has(family.tables) and begins_with_norm:
            variable.assign(STREAM * old)
        elif has(family.biases):
            variable.assign(old + spread)
        elif has(family.outliers):
            new = _gain(family, old) * (old - np.mean(old))
            variable.assign(new + spread / family.factor)
        elif has(family.tables):
            variable.assign(_gain(family, old) * (old - np.mean(old)))
        elif has(family.post_norms):
            variable.assign(STREAM + 0 * old - family.offset)
        elif has(family.writers) and family.post_norms == NONE:
            variable.assign(STREAM * old / (8 * np.std(old)))
        elif has(family.norms) or has(family.last_norms):
            is_last = has(family.last_norms)
            by = scale
            if is_last and family.tied and not begins_with_norm:
                by = scale / gain
            new = by * np.ones_like(old)
            new[:2] = 0.0 if is_last else 0.1
            variable.assign(new - family.offset)


def large_scores(backbone):
    """Makes queries and keys so large that their products are beyond FP16."""
    _multiply(backbone, {r"attention/(query|key)/kernel": 1000.0})


def large_gate(backbone):
    """Makes what a gate multiplies large, and what reads the product small.

    The weights are frozen but for LoRA: a step of Adam on weights so small would be
    larger than they are.
    """
    large, small = r"ffw_gating(_2)?/kernel", r"ffw_linear/kernel"
    _multiply(backbone, {large: 1000.0, small: 1000.0**-2})
    backbone.enable_lora(4)


def with_lora(backbone):
    """Freezes all weights, and adds those of LoRA to queries and values."""
    backbone.enable_lora(4)


class LargeGradient(keras.layers.Layer):
    """An identity, inside of which gradients are a billion times as large."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(CHANNELS, name="dense")

    def call(self, x):
        inner = self.dense(_with_gradient_times(x, 1e-9))
        return x + _with_gradient_times(inner, 1e9)


def _with_gradient_times(x, factor):
    import tensorflow as tf

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda up: up * tf.cast(factor, up.dtype)

    return identity(x)


def _multiply(backbone, factors):
    for variable in backbone.variables:
        for pattern, factor in factors.items():
            if re.search(pattern, variable.path):
                variable.assign(factor * variable.numpy())


def _gain(family, table):
    """Returns what brings the numbers of a table to those of the stream."""
    return STREAM / (family.factor * float(np.std(table)))


def batch(name):
    """Returns inputs and targets: words, and the word after each."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, WORDS, (BATCH, LENGTH + 1))
    inputs, mask = words[:, :-1], np.ones((BATCH, LENGTH), "int32")
    x = {"token_ids": inputs, "padding_mask": mask}
    if name in ("T5", "Bart", "Whisper"):
        parts = ("encoder", "decoder")
        x = {f"{part}_{key}": value for part in parts for key, value in x.items()}
    if name == "Whisper":
        del x["encoder_token_ids"], x["encoder_padding_mask"]
        x["encoder_features"] = rng.normal(size=(BATCH, 2 * LENGTH, MELS))
    if name == "Bert":
        x["segment_ids"] = 0 * inputs
    return x, words[:, 1:]
