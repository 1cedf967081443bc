"""LoRA with keras-hub: a small Llama, in FP32, in FP16, and with int8 and int4 weights.

The model is pre-trained on the help of Python's keywords and types, character by
character. LoRA then adapts it to the source code of `argparse`. Both are in Python's
standard library. Prints the megabytes of the weights, and the perplexity of held-out
code before and after LoRA.
"""

import argparse
import inspect
from pydoc_data.topics import topics

import keras
import keras_hub
import numpy as np

import keras_mp

LENGTH, BATCH, RANK = 32, 32, 8
# A dtype policy, and how to quantize the weights. Keras refuses int8 with FP16.
SETTINGS = {
    "float32": ("float32", None),
    "float16": ("float16", None),
    "float16, int4": ("float16", "int4"),
    "bfloat16, int8": ("bfloat16", "int8"),
}


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_rows(text):
    """Returns rows of `LENGTH + 1` characters, shuffled."""
    ids = np.frombuffer(text.encode("ascii", "ignore"), "uint8").astype("int32")
    rows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    np.random.default_rng(0).shuffle(rows)
    return rows


def make_model(policy):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    # With a checkpoint: keras_hub.models.CausalLM.from_preset(name, dtype=policy)
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=128,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=64,
        intermediate_dim=128,
    )
    return keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)


def inputs_of(rows):
    ids = rows[:, :-1]
    return {"token_ids": ids, "padding_mask": np.ones_like(ids)}


def fit(model, rows, optimizer, epochs=1):
    # XLA would compile each model for longer than it trains.
    model.compile(optimizer, loss_of, jit_compile=False)
    x, y = inputs_of(rows), rows[:, 1:]
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)


def perplexity(model, rows):
    logits = model.predict(inputs_of(rows), batch_size=BATCH, verbose=0)
    return np.exp(loss_of(rows[:, 1:], logits.astype("float32")))


def pretrain(steps):
    """Returns the weights of a model that was trained in FP32."""
    rows = make_rows("\n".join(topics.values()))[: steps * BATCH]
    model = make_model("float32")
    fit(model, rows, keras.optimizers.Adam(3e-3))
    return model.get_weights()


def is_not_embedding(layer):
    # An int8 embedding would return logits without a gradient.
    return not isinstance(layer, keras.layers.ReversibleEmbedding)


def fine_tune(policy, quantization, weights, epochs):
    """Returns the size of the weights, and the perplexity before and after LoRA."""
    rows = make_rows(inspect.getsource(argparse))
    held_out, rows = rows[:256], rows[256:]
    model = make_model(policy)
    model.set_weights(weights)
    if quantization:
        model.quantize(quantization, filters=is_not_embedding)
    model.backbone.enable_lora(RANK)
    optimizer = keras.optimizers.Adam(3e-3)
    # The recipe. LoRA's weights are FP32 under each policy, so they need no masters.
    if policy != "float32":
        model = keras_mp.convert(model)  # but Llama's own attention
        is_fp16 = policy == "float16"
        optimizer = keras_mp.wrap(optimizer, "dynamic" if is_fp16 else 1)
    before = perplexity(model, held_out)
    fit(model, rows, optimizer, epochs)
    size = sum(weight.numpy().nbytes for weight in model.weights)
    return size / 1e6, before, perplexity(model, held_out)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="of the pre-training")
    parser.add_argument("--epochs", type=int, default=2, help="of LoRA")
    given = parser.parse_args(argv)
    weights = pretrain(given.steps)
    print(f"{'':16}{'MB':>10}{'before':>10}{'after':>10}")
    for name, (policy, quantization) in SETTINGS.items():
        found = fine_tune(policy, quantization, weights, given.epochs)
        print(name.ljust(16) + "".join(f"{n:10.3f}" for n in found), flush=True)


if __name__ == "__main__":
    main()
