"""What pre-training and fine-tuning share: the loss, and what a model says."""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub

# The longest text that a model continues a prompt to, in tokens.
SAID = 24


def compile_model(model: Any, optimizer: Any) -> None:
    """Compiles a causal language model that is given tokens.

    Args:
        model: `keras_hub.models.CausalLM` without a preprocessor.
        optimizer: wrapped or not.
    """
    model.compile(
        optimizer=optimizer,
        # The mean over tokens; padding, of weight zero, counts nothing. Keras casts the
        # logits to FP32.
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[keras_hub.metrics.Perplexity(from_logits=True)],
        sampler="greedy",
        jit_compile=False,
    )


def said(model: Any, preprocessor: Any, prompts: Sequence[str]) -> list[str]:
    """Returns the prompts, each continued by the most probable tokens."""
    tokens = preprocessor.generate_preprocess(list(prompts), sequence_length=SAID)
    end = (preprocessor.tokenizer.end_token_id,)
    return preprocessor.generate_postprocess(model.generate(tokens, stop_token_ids=end))
