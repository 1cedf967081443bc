"""bigLSTM: cell and softmax against float64, optimizer, text, and runs of toy size."""

import json
import lzma
import math
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS
from language_model import data, gradients, train
from language_model.batches import held_out_batch, side_by_side, training_batches
from language_model.data import (
    SENTENCE_END,
    UNKNOWN,
    Vocabulary,
    load_sentences,
    split,
    words_and_signs,
)
from language_model.debian import DESCRIPTIONS
from language_model.lstm import ProjectedLSTM, ProjectedLSTMCell
from language_model.model import build, count_weights
from language_model.optimizer import LSTMClippingAdagrad
from language_model.sampled_softmax import SampledSoftmax

import keras_mp

PRESETS = Path(train.__file__).parent / "presets"
POLICIES = ["float32", "float16"]
# The last rounding of a number below 1, and of one that is rounded to FP16.
HALF = {"float32": 2**-24, "float16": 2**-11}


@pytest.fixture(autouse=True)
def float32_policy():
    """Leaves the dtype policy as it was."""
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


# --- lstm.py ---------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell_in_float64(cell, x, r, c):
    """Returns the output, the new state c and the hidden state before projection."""
    kernel, bias, projection = (
        np.asarray(weight.numpy(), "float64") for weight in cell.weights
    )
    i, f, g, o = np.split(np.concatenate([x, r], -1) @ kernel + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(c)
    return hidden @ projection, c, hidden


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("width", [1, 7, 64])
def test_cell(policy, width):
    cell = ProjectedLSTMCell(17, 5, dtype=policy)
    random = np.random.default_rng(0)
    x, r, c = (random.normal(size=(3, n)).astype("float16") for n in (width, 5, 17))
    output, states = cell(x.astype(policy), [r.astype(policy), c.astype(policy)])
    expected, expected_c, hidden = cell_in_float64(cell, x, r, c)
    # FP32 sums, sigmoids and tanhs inside, well below 2**-16; then a rounding to
    # `policy` each, the hidden state's carried through the product.
    inside, half = 2**-16, HALF[policy]
    projection = np.abs(cell.projection_kernel.numpy().astype("float64"))
    carried = (np.abs(hidden) * half + inside) @ projection + half * np.abs(expected)
    np.testing.assert_allclose(output, expected, rtol=0, atol=carried.max())
    tolerance = inside + half * np.abs(expected_c).max()
    np.testing.assert_allclose(states[1], expected_c, rtol=0, atol=tolerance)
    assert [str(s.dtype.name) for s in states] == [policy, policy]


def test_gates_are_summed_in_fp32():
    cell = ProjectedLSTMCell(1, 1, dtype="float16")
    cell.build((None, 4))
    # 60,000 twice, and as much back: an FP16 sum is inf on the way.
    column = np.array([[240.0], [240.0], [-240.0], [-240.0], [0.0]])
    cell.set_weights([np.repeat(column, 4, 1), np.zeros(4), np.ones((1, 1))])
    zeros = np.zeros((1, 1), "float16")
    x = np.full((1, 4), 250.0, "float16")
    output, _ = cell(x, [zeros, zeros + np.float16(1.0)])
    # All gates are sigmoid(0); the candidate is tanh(0).
    assert output.numpy() == np.float16(0.5 * math.tanh(0.5))


def test_the_forget_gate_starts_open():
    cell = ProjectedLSTMCell(2, 3)
    cell.build((None, 4))
    assert cell.bias.numpy().tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_training_goes_on_where_it_stopped(policy):
    layer = ProjectedLSTM(4, 3, batch=2, carry=3, dtype=policy)
    x = np.random.default_rng(0).normal(size=(2, 6, 5)).astype(policy)
    whole = layer(x, training=True).numpy()
    assert whole.dtype == policy
    for state in [*layer.states, layer.carried]:
        state.assign(np.zeros(state.shape))
    parts = [layer(part, training=True).numpy() for part in np.split(x, 2, axis=1)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    kept = [state.numpy() for state in layer.states]
    # Held-out text begins at zero, with any number of parts, and changes nothing.
    np.testing.assert_array_equal(layer(x), whole)
    # A product with fewer rows may sum in another order: a last digit at each step.
    atol = 6 * HALF[policy]
    np.testing.assert_allclose(layer(x[:1]), whole[:1], rtol=0, atol=atol)
    for state, value in zip(layer.states, kept, strict=True):
        np.testing.assert_array_equal(state, value)
        assert not state.trainable


def test_training_begins_anew_after_so_many_batches():
    layer = ProjectedLSTM(4, 3, batch=2, carry=2)
    x = np.random.default_rng(0).normal(size=(2, 6, 5)).astype("float32")
    first, second, third = (layer(x, training=True).numpy() for _ in range(3))
    assert np.abs(second - first).max() > 0.01
    np.testing.assert_array_equal(third, first)


# --- sampled_softmax.py ----------------------------------------------------


def softmax_case(policy, sampled):
    """Returns a layer over ten words, its inputs, and the logits in float64."""
    layer = SampledSoftmax(10, sampled, seed=0, dtype=policy)
    random = np.random.default_rng(0)
    features = random.normal(size=(2, 3, 4)).astype(policy)
    targets = np.array([[0, 1, 9], [3, 0, 5]])
    layer.build([features.shape, targets.shape])
    layer.set_weights(
        [random.normal(size=(10, 4)), random.normal(size=10), *layer.get_weights()[2:]]
    )
    kernel, bias = (np.asarray(w.numpy(), "float64") for w in layer.weights[:2])
    return layer, (features, targets), features.astype("float64") @ kernel.T + bias


def cross_entropy(logits, targets):
    total = np.log(np.exp(logits).sum(-1))
    return total - np.take_along_axis(logits, targets[..., None], -1)[..., 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_full_softmax(policy):
    layer, inputs, logits = softmax_case(policy, sampled=1)
    found = layer(inputs)
    assert found.dtype == "float32"
    # Products of FP16 numbers are exact in FP32; logits are below 8.
    expected = cross_entropy(logits, inputs[1])
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * 2**-20)


@pytest.mark.parametrize("policy", POLICIES)
def test_sampled_softmax_approaches_the_full_one(policy):
    sampled = 100_000
    layer, inputs, logits = softmax_case(policy, sampled)
    found = layer(inputs, training=True)
    assert found.dtype == "float32"
    words = np.arange(10)
    q = np.log((words + 2) / (words + 1)) / np.log(11)
    assert q.sum() == pytest.approx(1)
    # The sum over words is estimated by the mean of exp(logit) / q; the target's count
    # by the number of times that it is drawn. Five standard deviations of both.
    weights = np.exp(logits) / q
    mean = np.exp(logits).sum(-1)
    deviation = np.sqrt((q * weights**2).sum(-1) - mean**2) / mean
    deviation = deviation.max() + np.sqrt(1 / q.min())
    expected = cross_entropy(logits, inputs[1])
    atol = 5 * deviation / math.sqrt(sampled)
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_gradients_of_the_tables_are_their_rows():
    model = build(
        words=9,
        width=4,
        units=6,
        num_layers=1,
        dropout=0.0,
        sampled=2,
        batch=1,
        carry=1,
        seed=0,
    )
    ids = np.array([[1, 2]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model([ids, ids], training=True))
    weights = {v.path.partition("/")[2]: v.value for v in model.trainable_variables}
    for name, gradient in tape.gradient(loss, weights).items():
        is_table = name in {"embeddings", "kernel", "bias"}
        assert isinstance(gradient, tf.IndexedSlices) == is_table, name


# --- model.py and optimizer.py ---------------------------------------------


def test_weights_are_counted():
    sizes = {"words": 11, "width": 4, "units": 6, "num_layers": 2}
    model = build(**sizes, dropout=0.1, sampled=3, batch=2, carry=9, seed=0)
    trained = sum(math.prod(v.shape) for v in model.trainable_variables)
    assert sum(count_weights(**sizes).values()) == trained


def test_the_paper_preset_has_the_weights_of_its_paper():
    preset = json.loads((PRESETS / "paper.json").read_text())
    sizes = {name: preset[name] for name in ("words", "width", "units")}
    found = count_weights(**sizes, num_layers=preset["layers"])
    # Two LSTMs: [1024 + 1024, 4 * 8192], bias, [8192, 1024].
    assert found["lstm"] == 2 * (2048 * 32768 + 32768 + 8192 * 1024) == 151_060_480
    # Jozefowicz et al. 2016, table 1, in billions; 1.04 with characters as inputs.
    assert round(sum(found.values()) / 1e9, 1) == 1.8


@pytest.mark.parametrize(
    ("gradient", "clipped"),
    [
        pytest.param([3.0, 4.0], [0.6, 0.8], id="longer"),
        pytest.param([0.3, 0.4], [0.3, 0.4], id="shorter"),
        pytest.param([300.0, 400.0], [0.6, 0.8], id="squares beyond FP16"),
    ],
)
@pytest.mark.parametrize("dtype", POLICIES)
def test_only_gradients_of_lstms_are_clipped(gradient, clipped, dtype):
    with keras.name_scope("lstm_1"):
        weight = keras.Variable([0.0, 0.0], dtype=dtype, name="kernel")
    table = keras.Variable([0.0], dtype=dtype, name="table")
    optimizer = LSTMClippingAdagrad(1.0, 1.0, initial_accumulator_value=1.0)
    gradients = [np.array(gradient, dtype), np.array([5.0], dtype)]
    optimizer.apply(list(map(tf.constant, gradients)), [weight, table])
    # Adagrad: g / sqrt(1 + g**2). Three roundings of numbers below 1.
    expected = [-g / math.sqrt(1 + g * g) for g in clipped]
    atol = 4 * HALF[dtype]
    np.testing.assert_allclose(weight, expected, rtol=0, atol=atol)
    np.testing.assert_allclose(table, [-5 / math.sqrt(26)], rtol=0, atol=atol)


@pytest.mark.parametrize("wrap", [lambda o: o, keras_mp.wrap], ids=["bare", "wrapped"])
def test_rows_of_a_word_are_added_up(wrap):
    table = keras.Variable([[0.0], [0.0], [7.0]])
    rows = tf.constant([[1.0], [-2.0], [0.5]]), tf.constant([0, 0, 1])
    optimizer = wrap(LSTMClippingAdagrad(1.0, 1.0, initial_accumulator_value=1.0))
    scaled = optimizer.scale_loss(1.0)
    gradient = tf.IndexedSlices(rows[0] * scaled, rows[1], tf.constant([3, 1]))
    optimizer.apply([gradient], [table])
    # -1 and 0.5, g / sqrt(1 + g**2) of each; the third word is not in the batch.
    expected = [[1 / math.sqrt(2)], [-0.5 / math.sqrt(1.25)], [7.0]]
    np.testing.assert_allclose(table, expected, rtol=4 * 2**-24)


def test_optimizer_is_saved():
    config = LSTMClippingAdagrad(0.3, 2.0).get_config()
    copy = LSTMClippingAdagrad.from_config(config)
    assert copy.lstm_clipnorm == 2.0
    assert float(copy.learning_rate) == pytest.approx(0.3)


# --- data.py and batches.py ------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.txt", None, "does not exist. Check the path", id="missing"),
        pytest.param("a.txt", b" \n", "at least one sentence.*none", id="empty"),
        pytest.param("a.txt", b"a\nv\xe9\n", "UTF-8. .*line 2.*iconv", id="latin-1"),
        pytest.param("a.xz", lzma.compress(b"a\n" * 99)[:40], "be whole", id="cut off"),
        pytest.param("a.xz", b"no archive", "be whole", id="not xz"),
        pytest.param("a.gz", b"no archive", "be whole", id="not gzip"),
    ],
)
def test_a_bad_text_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_sentences(str(tmp_path / name))


def test_sentences_are_read(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress("One.\n\n Zw\u00f6lf! \n".encode()))
    assert load_sentences(str(path)) == ["One.", "Zw\u00f6lf!"]
    assert words_and_signs("It's 10%.") == ["it", "'", "s", "10", "%", "."]


def test_split_holds_the_same_sentences_out_for_every_seed():
    text = [f"s{i}" for i in range(20)]
    train_0, test_0 = split(text, 5, seed=0)
    train_1, test_1 = split(text, 5, seed=1)
    assert test_0 == test_1
    assert train_0 != train_1
    assert sorted(train_0) == sorted(train_1)
    assert sorted(train_0 + test_0) == sorted(text)


@pytest.mark.parametrize("held_out", [0, 2, 3])
def test_split_leaves_sentences_on_both_sides(held_out):
    with pytest.raises(ValueError, match=f"Received: held_out={held_out} of 2"):
        split(["a", "b"], held_out, seed=0)


def test_vocabulary():
    text = [["b", "a", "a"], ["c", "b", "a"]]
    vocabulary = Vocabulary(text, 4)
    assert vocabulary.words[2:] == ["a", "b"]
    found = vocabulary.encode([["b", "c"], ["a"]])
    assert found.tolist() == [3, UNKNOWN, SENTENCE_END, 2, SENTENCE_END]
    assert found.dtype == np.int32
    with pytest.raises(ValueError, match=r"words=6 for a text of 3 .* Set words=5"):
        Vocabulary(text, 6)


def test_batches_go_on_where_the_last_one_ended():
    batches = training_batches(np.arange(16), batch=2, unrolled=3)
    found = [(x.numpy().tolist(), y.numpy().tolist()) for (x, _), y in batches.take(3)]
    first = [[0, 1, 2], [7, 8, 9]], [[1, 2, 3], [8, 9, 10]]
    second = [[3, 4, 5], [10, 11, 12]], [[4, 5, 6], [11, 12, 13]]
    assert found == [first, second, first]
    (x, targets), y = next(iter(held_out_batch(np.arange(16), batch=2)))
    assert x.numpy().tolist() == [list(range(7)), list(range(7, 14))]
    np.testing.assert_array_equal(targets, y)


def test_a_text_may_be_too_short():
    with pytest.raises(ValueError, match=r"Received: 2 word\(s\) for batch=2"):
        side_by_side(np.arange(2), 2)
    with pytest.raises(ValueError, match=r"parts of 2 word\(s\) for unrolled=3"):
        training_batches(np.arange(5), 2, unrolled=3)


# --- debian.py -------------------------------------------------------------

STANZAS = """\
Package: aide
Description-md5: 1d70
Description-en: Advanced Intrusion Detection
 AIDE detects changes to files
 on the system. It creates a database.
  * a list is no sentence at all
 .
 A second paragraph has a sentence. Short one.

Package: aide-common
Description-en: Advanced Intrusion Detection
 It creates a database.
Tag: role::program,
 a continued line of another field
"""


def test_sentences_of_descriptions(tmp_path, monkeypatch):
    path = tmp_path / "Translation-en.xz"
    path.write_bytes(lzma.compress(STANZAS.encode()))
    monkeypatch.setattr(data, "downloaded", {DESCRIPTIONS: path}.get)
    assert load_sentences("debian-descriptions") == [
        "AIDE detects changes to files on the system.",
        "It creates a database.",
        "A second paragraph has a sentence.",
    ]


# --- train.py --------------------------------------------------------------

TINY = {
    "held-out": 4,
    "words": 12,
    "width": 4,
    "units": 6,
    "layers": 1,
    "sampled": 3,
    "batch": 2,
    "unrolled": 4,
    "carry": 2,
    "eval-every": 1,
    "verbose": 0,
}


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """The flags of a run of toy size, but for precision, steps and folder."""
    monkeypatch.setenv("KERAS_MP_OPS", "reference")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The word {chr(97 + i % 9)} .\n" for i in range(30)))
    return [f"--data={text}", *(f"--{k}={v}" for k, v in TINY.items())]


@pytest.mark.xslow_except("mixed")
@pytest.mark.slow
@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - FORMS.keys()))
def test_train_in_every_precision(precision, flags, tmp_path):
    run = [*flags, f"--precision={precision}", "--steps=1", f"--out={tmp_path / 'run'}"]
    result = train.main(run)
    # 12 words and the ends of sentences: chance is 12.
    assert 1 < result["measures"]["held-out perplexity"] < 100
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result


@pytest.mark.xslow
def test_a_run_that_is_resumed_ends_as_one_that_was_not(flags, tmp_path):
    whole = train.main([*flags, "--steps=3", f"--out={tmp_path / 'whole'}"])
    train.main([*flags, "--steps=1", f"--out={tmp_path / 'parts'}"])
    parts = train.main([*flags, "--steps=3", f"--out={tmp_path / 'parts'}", "--resume"])
    names = ("perplexity", "val_perplexity", "loss")
    for row, expected in zip(parts["log"], whole["log"], strict=True):
        assert {n: row[n] for n in names} == {n: expected[n] for n in names}


def test_a_share_of_a_mean_over_many_words():
    model = keras.Sequential([keras.layers.Identity()])
    model.compile(loss=train.LOSSES["share"])
    # Two texts of three words, of which each costs 4.
    found = model.compute_loss(y=np.zeros((2, 3)), y_pred=tf.fill([2, 3], 4.0))
    assert float(found) == 6 * 4 / train.SHARED_WORDS


@pytest.mark.slow
def test_a_smaller_loss_trains_the_same_weights(flags, tmp_path, monkeypatch):
    """Adagrad divides by the length of its gradients; its bound shrinks with them."""
    monkeypatch.setattr(train, "SHARED_WORDS", TINY["batch"] * 1024)
    share = json.loads((PRESETS / "share.json").read_text())
    assert share == json.loads((PRESETS / "demo.json").read_text()) | {
        "loss": "share",
        "initial_accumulator": 2**-20,
        "lstm_clipnorm": 2**-10,
    }
    run = [*flags, "--steps=3", "--precision=fp32"]
    whole = train.main([*run, f"--out={tmp_path / 'sum'}"])
    part = train.main([*run, "--preset=share", f"--out={tmp_path / 'share'}"])
    for row, expected in zip(part["log"], whole["log"], strict=True):
        assert row["val_perplexity"] == expected["val_perplexity"]
        assert row["loss"] == expected["loss"] / 1024


def test_too_little_memory_is_told_before_it_is_needed(flags, tmp_path):
    with pytest.raises(MemoryError, match=r"which need .* GB, on a machine of"):
        train.main([*flags, "--words=1000000000000", f"--out={tmp_path / 'run'}"])


@pytest.mark.slow
def test_the_table_of_lost_gradients(flags, capsys):
    gradients.main([*flags, "--steps=1", "--batch=1", "--unrolled=1"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + len(gradients.CASES)
    # Of so few words FP16 loses nothing that counts.
    for row in rows[2:]:
        error = float(row.split("|")[5].strip().rstrip("%"))
        assert 0 < error < 1
