"""`inspect` and `find_overflow` on families of keras-hub, as they come."""

import keras
import numpy as np
import pytest
from hub_models import FAMILIES, make_task
from outlier_models import batch, language_model
from unchanged import unchanged

import keras_mp

pytest.importorskip("keras_hub", reason="needs keras-hub")
POLICIES = ("float32", "mixed_float16", "float16", "bfloat16")
# Seen by `make test-all`, one of each kind; the other families, by `make test-slow`.
OF_EACH_KIND = ("Bert", "CLIP", "Gemma3", "T5")
# What the model says of itself, in FP16 or in any precision.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* was passed an input with a mask:UserWarning",
    "ignore:overflow encountered in cast:RuntimeWarning",
)


def cases():
    for family in FAMILIES:
        marks = () if family in OF_EACH_KIND else pytest.mark.xslow
        for policy in POLICIES:
            yield pytest.param(family, policy, marks=marks, id=f"{family}-{policy}")


@pytest.mark.xslow_except("CLIP-mixed_float16", "Bert-mixed_float16")
@pytest.mark.slow_except("Gemma3-mixed_float16")
@pytest.mark.parametrize(("family", "policy"), [*cases()])
def test_a_family_is_seen_and_left_as_it_was(family, policy):
    keras.config.set_dtype_policy(policy)
    model, x, y = make_task(family, keras_mp.wrap("adam", loss_scale=1.0))
    with unchanged(model):
        found = keras_mp.find_overflow(model, x, y)
        report = keras_mp.inspect(model, x, y)
    assert report.notes == ()
    trained = report.of_kind("weight_gradient")
    assert len(trained) > len(model.trainable_variables) / 2
    if family == "T5":
        # FP16 has no -1e9, by which its attention adds a mask: 0 * -inf.
        assert report.needs_fp32() and np.isnan(report.fp16_loss)
        assert "in FP16 the loss is nan, and the outputs are not finite" in str(report)
        assert (found is not None) == (policy in ("mixed_float16", "float16"))
        return
    assert found is None
    # A loss of 2 has 11 digits in FP16; each of some 20 layers rounds it once.
    assert report.loss_error < 20 * 2.0**-11 and not report.needs_fp32()
    assert min(report.gradient_errors.values()) < 20 * 2.0**-11


def test_there_are_twenty_families_at_least():
    assert len(FAMILIES) >= 20


@pytest.mark.xslow_except("mixed_float16")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_the_attention_of_t5_is_named(policy):
    keras.config.set_dtype_policy(policy)
    model, x, y = make_task("T5", keras_mp.wrap("adam", loss_scale=1.0))
    found = keras_mp.find_overflow(model, x, y)
    path = "t5_backbone/transformer_encoder_layer_0/self_attention"
    assert (found.path, found.where) == (path, "forward")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_silent_clip_of_gemma_3_is_told(policy):
    keras.config.set_dtype_policy(policy)
    model = language_model("Gemma3", outliers=3e5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_mp.wrap("adam", loss_scale=1.0), loss)
    report = keras_mp.inspect(model, *batch("Gemma3"))
    # Nothing is infinite: the loss is that of other numbers.
    assert report.fp16_loss > 2 * report.loss
    assert report.needs_fp32() and np.isfinite(report.needs_fp32().value)
    first, second, *_ = str(report).split("\n")
    assert f"in FP16 the loss is {report.fp16_loss:.6g}, off by" in first
    assert second.startswith("This model exceeds the range of FP16")
