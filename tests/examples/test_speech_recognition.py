"""The speech recognition example: its parts, and all of it on nine utterances."""

import io
import json
import math
import os
import tarfile
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS
from wrapping import optimizer_for

# mixed-no-masters differs from mixed in what a callback does after a step.
STEPS = sorted(PRECISIONS.keys() - FORMS.keys() - {"mixed-no-masters"})

PRESETS = Path(__file__).parents[2] / "examples/speech_recognition/presets"
SPOKEN = {"train": ["YES", "GO", "A B", "STOP", "TWO", "NO"], "test": ["ON", "TEN"]}
# Of the utterances in order, more than CTC needs after a stride of 4.
FRAMES = [40, 33, 36, 50, 41, 37, 30, 43]


def mfcc_file(coefficients):
    """Returns the content of an .mfc file: a count and numbers, big-endian."""
    count = np.array(coefficients.size, ">i4")
    return count.tobytes() + coefficients.astype(">f4").tobytes()


def an4(suffix=".mfc", **changes):
    """Returns the files of a small AN4 by name; changes replace some, None removes."""
    rng = np.random.default_rng(0)
    files, frames = {}, iter(FRAMES)
    for part, texts in SPOKEN.items():
        names = [f"an{i}-{part}-b" for i in range(len(texts))]
        lines = [f"{text} ({name})" for text, name in zip(texts, names, strict=True)]
        if part == "test":
            lines = [f"<s> {line.replace(' (', ' </s> (')}" for line in lines]
        files[f"an4/etc/an4_{part}.transcription"] = "\n".join(lines).encode()
        for name in names:
            count = next(frames)
            if suffix == ".mfc":
                content = mfcc_file(rng.normal(5, 3, (count, 13)))
            else:
                content = rng.integers(-999, 999, 160 * count, "<i2").tobytes()
            files[f"an4/wav/{part}/{name}{suffix}"] = content
    files |= {name.replace("__", "/"): content for name, content in changes.items()}
    return {name: content for name, content in files.items() if content is not None}


def write(path, files):
    with tarfile.open(path, "w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(path)


# --- data.py, features.py, batches.py --------------------------------------


def test_reads_coefficients_and_texts(tmp_path):
    from speech_recognition.data import load

    files = an4()
    train, test = load(write(tmp_path / "an4.tar.xz", files), "mfcc")
    assert [utterance.text for utterance in train] == SPOKEN["train"]
    assert [utterance.text for utterance in test] == SPOKEN["test"]
    assert [len(u.features) for u in (*train, *test)] == FRAMES
    content = files["an4/wav/train/an1-train-b.mfc"]
    numbers = np.frombuffer(content, ">f4", offset=4).reshape(-1, 13).astype("float64")
    expected = (numbers - numbers.mean(0)) / numbers.std(0)
    assert train[1].features.dtype == "float32"
    # A mean and a deviation of 33 FP32 numbers below 16, and a division: 2^-24 each.
    np.testing.assert_allclose(train[1].features, expected, rtol=0, atol=40 * 2**-20)


@pytest.mark.parametrize(("features", "size"), [("mfcc", 13), ("spectrogram", 161)])
def test_hears_recordings(tmp_path, features, size):
    from speech_recognition.data import load

    train, test = load(write(tmp_path / "an4.tar.gz", an4(".raw")), features)
    assert [utterance.text for utterance in test] == SPOKEN["test"]
    assert train[0].features.shape[1] == size
    # Windows begin every 10 ms and end before the samples do.
    missing = np.subtract(FRAMES, [len(u.features) for u in (*train, *test)])
    assert set(missing) == {1 if features == "spectrogram" else 2}
    np.testing.assert_allclose(train[0].features.mean(axis=0), 0, atol=1e-5)


NAME = "an4__wav__train__an2-train-b.mfc"
TEXTS = "an4__etc__an4_train.transcription"


@pytest.mark.parametrize(
    ("changes", "features", "message"),
    [
        pytest.param({NAME: None}, "mfcc", "without an2-train-b.raw", id="no features"),
        pytest.param({TEXTS: None}, "mfcc", "an4_train.transcription", id="no texts"),
        pytest.param({}, "spectrogram", "without an0-train-b.raw", id="no samples"),
        pytest.param({NAME: b"\0\0\0\1"}, "mfcc", "an2-.*4 bytes.* 1", id="cut"),
        pytest.param({NAME: bytes(9)}, "mfcc", "an2-.*9 bytes.* 0", id="odd"),
        pytest.param({NAME: bytes(4)}, "mfcc", "an2-.*4 bytes.* 0", id="empty"),
        pytest.param({NAME: mfcc_file(np.ones(14))}, "mfcc", "60 bytes.* 14", id="14"),
        pytest.param(
            {TEXTS: b"YES (an0-train-b)\nNO!"}, "mfcc", "line 2: 'NO!'", id="line"
        ),
        pytest.param({TEXTS: b""}, "mfcc", "an4_train.*empty", id="no lines"),
        pytest.param({TEXTS: b"\xff"}, "mfcc", "line 1", id="no text"),
    ],
)
def test_a_bad_archive_is_refused(tmp_path, changes, features, message):
    from speech_recognition.data import load

    with pytest.raises(ValueError, match=rf"(?s)Received: .*{message}"):
        load(write(tmp_path / "an4.tar", an4(**changes)), features)


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        pytest.param(None, FileNotFoundError, "does not exist", id="missing"),
        pytest.param(9, ValueError, "Fetch it again", id="no archive"),
        pytest.param(-99, ValueError, "Fetch it again", id="cut"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, keep, error, message):
    from speech_recognition.data import load

    path = tmp_path / "an4.tar.xz"
    if keep is not None:
        write(path, an4())
        path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(error, match=rf"Received: .*an4\.tar\.xz.*{message}"):
        load(str(path), "mfcc")


def test_a_tone_is_in_the_bin_of_its_frequency():
    from speech_recognition.features import normalized, spectrogram

    seconds = np.arange(16_000) / 16_000
    heard = spectrogram(1_000 * np.sin(2 * np.pi * 2_000 * seconds))
    # 99 windows of 20 ms, every 10 ms, with a bin every 50 Hz.
    assert heard.shape == (99, 161)
    assert set(heard.argmax(axis=1)) == {2_000 // 50}
    silence = normalized(spectrogram(np.zeros(16_000)))
    assert (silence == 0).all()


@pytest.mark.parametrize(
    ("text", "frames", "fits"),
    [("AB", 5, True), ("AB", 4, False), ("AA", 8, False), ("AA", 9, True)],
)
def test_ctc_needs_a_frame_for_a_character(text, frames, fits):
    from speech_recognition.data import Utterance, check_lengths

    utterances = [Utterance(np.zeros((frames, 13), "float32"), text)]
    if fits:
        check_lengths(utterances, stride=4)
        return
    with pytest.raises(ValueError, match=rf"Received: '{text}'.*{frames} frames"):
        check_lengths(utterances, stride=4)


def utterances_of(*frames):
    from speech_recognition.data import Utterance

    return [Utterance(np.full((n, 13), n, "float32"), "A" * n) for n in frames]


def test_batches_are_of_similar_length_and_padded():
    from speech_recognition.batches import training_batches

    utterances = utterances_of(3, 9, 4, 8, 10, 5)
    batches = training_batches(utterances, batch=2, buckets=[6], seed=0)
    seen = []
    for inputs, labels in batches.take(12):
        lengths = inputs["lengths"].numpy()
        assert len({length < 6 for length in lengths}) == 1
        assert inputs["features"].shape == (2, max(lengths), 13)
        expected = [[n] * n + [0] * (max(lengths) - n) for n in lengths]
        assert inputs["features"][:, :, 0].numpy().tolist() == expected
        assert (labels.numpy() > 0).sum(axis=1).tolist() == lengths.tolist()
        seen += lengths.tolist()
    # Four times each, but for a batch of each bucket that may not be full yet.
    assert min(seen.count(n) for n in (3, 9, 4, 8, 10, 5)) >= 3
    again = training_batches(utterances, batch=2, buckets=[6], seed=0)
    assert [i["lengths"].numpy().tolist() for i, _ in again.take(12)] == [
        seen[i : i + 2] for i in range(0, 24, 2)
    ]


def test_labels_are_not_blank_and_read_back():
    from speech_recognition.batches import CHARACTERS, CLASSES, labels, text

    assert sorted(labels(CHARACTERS)) == list(range(1, CLASSES))
    assert text([0, *labels("IT'S A"), 0, -1]) == "IT'S A"


# --- model.py, decoding.py -------------------------------------------------


def network(layers=2):
    from speech_recognition.model import deep_speech_2

    keras.utils.set_random_seed(0)
    sizes = {"convolutions": [(3, 5, 2, 3, 1), (3, 5, 2, 3, 2)], "units": 4}
    return deep_speech_2(13, 6, **sizes, layers=layers, context=2)


@pytest.mark.slow_except("float32-training", "float16-inference")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("policy", ["float32", "float16"])
def test_padding_changes_nothing(policy, training):
    keras.config.set_dtype_policy(policy)
    model = network()
    lengths = np.array([21, 14, 7])
    features = np.random.default_rng(0).normal(size=(3, 21, 13)).astype("float32")
    features *= (np.arange(21) < lengths[:, None])[:, :, None]
    padded = np.pad(features, [(0, 0), (0, 8), (0, 0)])
    short, long = (
        model({"features": x, "lengths": lengths}, training=training).numpy()
        for x in (features, padded)
    )
    assert short.dtype == long.dtype == "float32"
    assert short.shape == (3, 6, 6)
    assert long.shape == (3, 8, 6)
    # A longer batch is summed in another order: by as much FP32 sums of at most 1,000
    # numbers near 1 differ, and by it a rounding to FP16 can fall to the other side.
    unit = 2**-24 if policy == "float32" else 2**-11
    np.testing.assert_allclose(
        long[:, :6], short, rtol=0, atol=1000 * 2**-24 + 8 * unit
    )
    assert (np.argmax(long[:, 6:], axis=-1) == 0).all()


def test_each_utterance_alone_is_what_it_is_in_a_batch():
    model = network()
    features = np.random.default_rng(0).normal(size=(2, 30, 13)).astype("float32")
    features[1, 17:] = 0
    lengths = np.array([30, 17])
    batch = model({"features": features, "lengths": lengths}).numpy()
    alone = model({"features": features[1:, :17], "lengths": lengths[1:]}).numpy()
    frames = alone.shape[1]
    # As above.
    np.testing.assert_allclose(batch[1:, :frames], alone, rtol=0, atol=1008 * 2**-24)


def test_loss_and_gradient_are_those_of_the_lengths():
    from speech_recognition.model import BlankAfterSpeech

    logits = tf.Variable(tf.random.stateless_normal((2, 7, 5), [0, 1]))
    labels = np.array([[1, 1, 3], [4, 0, 0]])
    lengths = np.array([7, 4])
    blank = BlankAfterSpeech()
    with tf.GradientTape(persistent=True) as tape:
        padded = blank(logits, tf.sequence_mask(lengths, 7))
        losses = [
            keras.losses.CTC()(labels, padded),
            keras.ops.mean(keras.ops.ctc_loss(labels, logits, [3, 1], lengths)),
        ]
    gradients = [tape.gradient(loss, logits).numpy() for loss in losses]
    # Sums of logarithms over 7 frames of 5 classes, in FP32.
    np.testing.assert_allclose(*losses, rtol=64 * 2**-24)
    np.testing.assert_allclose(*gradients, rtol=0, atol=64 * 2**-24)


def test_row_convolution_looks_ahead():
    from speech_recognition.model import RowConvolution

    layer = RowConvolution(context=2)
    frames = np.array([[[1.0, 10], [2, 20], [3, 30], [99, 99]]], "float32")
    speech = np.array([[True, True, True, False]])
    layer(frames, speech)
    layer.set_weights([np.array([[[1.0], [1]], [[2], [0]], [[4], [0]]], "float32")])
    # 1 + 2 * 2 + 4 * 3, 2 + 2 * 3, 3; of the second feature no other frame.
    found = layer(frames, speech)[0, :3].numpy()
    assert found.tolist() == [[17, 10], [8, 20], [3, 30]]


def test_what_is_heard():
    from speech_recognition.batches import CLASSES, labels
    from speech_recognition.decoding import transcribe

    class Echo(keras.Model):
        """Is certain of what it is told."""

        def call(self, inputs):
            return keras.ops.one_hot(inputs["features"], CLASSES) * 9.0

    paths = np.array([[0, *labels("AABB"), 0, *labels("B")], [*labels("GO"), *[0] * 5]])
    inputs = {"features": paths, "lengths": np.array([7, 2])}
    batches = tf.data.Dataset.from_tensors((inputs, paths))
    assert transcribe(Echo(), batches) == ["ABB", "GO"]


def test_the_paper_preset_has_115_million_weights():
    from speech_recognition.batches import CLASSES
    from speech_recognition.model import deep_speech_2

    preset = json.loads((PRESETS / "paper.json").read_text())
    sizes = ("convolutions", "units", "layers", "context")
    # Variables get a shape there, and no memory.
    with keras.StatelessScope(initialize_variables=False):
        model = deep_speech_2(161, CLASSES, **{name: preset[name] for name in sizes})
        count = model.count_params()
    assert count == pytest.approx(115e6, rel=0.1)
    h, frequencies = preset["units"], 41
    # Both directions of three gates: of the inputs, of the state, and two biases.
    grus = 2 * 3 * h * (32 * frequencies + 5 * h + 3 * 2)
    assert grus == pytest.approx(count, rel=0.01)


# --- train.py, compare.py --------------------------------------------------

TINY = [
    "--convolutions=[[2, 5, 2, 3, 1], [2, 5, 2, 3, 2]]",
    *["--units=4", "--layers=1", "--context=2", "--batch=2", "--buckets=[38]"],
    *["--steps=2", "--eval-every=1", "--verbose=0"],
]


@pytest.fixture
def data(tmp_path):
    return f"--data={write(tmp_path / 'an4.tar.xz', an4())}"


@pytest.fixture(autouse=True)
def route(monkeypatch):
    """Has the route of the ops be that of before."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))


@pytest.mark.xslow_except("mixed", "plain-fp16", "fp32")
@pytest.mark.parametrize("precision", STEPS)
def test_one_step_in_every_precision(precision, monkeypatch):
    from experiments.sgd import SGD

    if PRECISIONS[precision].computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(PRECISIONS[precision].dtype_policy)
    model = network(layers=1)
    sgd = SGD(0.1, 0.9, nesterov=True, global_clipnorm=1.0)
    optimizer = optimizer_for(PRECISIONS[precision], sgd)
    model.compile(optimizer, keras.losses.CTC(), run_eagerly=True)
    before = [weight.numpy() for weight in model.trainable_variables]
    features = np.random.default_rng(0).normal(size=(2, 21, 13)).astype("float32")
    inputs = {"features": features, "lengths": np.array([21, 14])}
    labels = np.array([[1, 2, 3], [4, 0, 0]])
    loss = model.train_on_batch(inputs, labels)
    assert math.isfinite(loss)
    for old, weight in zip(before, model.trainable_variables, strict=True):
        assert np.isfinite(weight.numpy()).all()
        assert (weight.numpy() != old).any(), weight.path


def test_gradients_of_two_dtypes_are_clipped_together():
    from experiments.sgd import SGD

    dtypes = ["float16", "float32"]
    weights = [keras.Variable([0.0, 0.0], dtype=dtype) for dtype in dtypes]
    gradients = [tf.constant([3, 0], "float16"), tf.constant([0, 4], "float32")]
    SGD(1.0, global_clipnorm=2.5).apply(gradients, weights)
    # Their norm is 5.
    assert [w.numpy().tolist() for w in weights] == [[-1.5, 0], [0, -2]]
    assert [w.numpy().dtype for w in weights] == dtypes


@pytest.mark.slow
def test_a_run(data, tmp_path):
    from speech_recognition.train import main

    whole = main([*TINY, data, f"--out={tmp_path}"])
    assert json.loads((tmp_path / "result.json").read_text()) == whole
    assert all(math.isfinite(row["loss"] + row["val_loss"]) for row in whole["log"])
    assert [len(texts) for texts in whole["transcripts"].values()] == [2, 2]
    gradients = whole["weight_gradients"]
    counted = gradients["zeros"] + sum(gradients["exponents"].values())
    assert 0 < counted == gradients["elements"] < whole["weights"]


@pytest.mark.xslow
def test_a_resumed_run_ends_as_one_that_never_stopped(data, tmp_path):
    from speech_recognition.train import main

    whole = main([*TINY, data, f"--out={tmp_path / 'whole'}"])
    flags = [*TINY, data, f"--out={tmp_path / 'parts'}"]
    main([*flags, "--steps=1"])
    parts = main([*flags, "--resume"])
    assert parts["measures"] == whole["measures"]
    assert parts["weight_gradients"] == whole["weight_gradients"]


def test_gradients_over_training_are_those_of_each_epoch(tmp_path):
    from speech_recognition.gradients import gradients_over_training, keep_weights

    # The gradient is 2 * error * [1, 1, 1, 1], and each step halves the error of 1.
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((4,)), dense])
    model.compile(keras.optimizers.SGD(1 / 16), "mse")
    x = np.ones((1, 4), "float32")
    fit = partial(model.fit, x, x[:, :1], verbose=0)
    folder = tmp_path / "weights"
    fit(epochs=1, callbacks=[keep_weights(folder)])
    # A run that is resumed goes on in the same folder.
    fit(epochs=3, initial_epoch=1, callbacks=[keep_weights(folder)])
    found = gradients_over_training(model, folder, 3, x, x[:, :1])
    assert [counts["exponents"] for counts in found] == [{"0": 4}, {"-1": 4}, {"-2": 4}]
    assert {(each["elements"], each["zeros"]) for each in found} == {(4, 0)}


@pytest.mark.xslow
def test_figure_2b_of_a_run_in_fp32(data, tmp_path, capsys):
    from speech_recognition.figure2b import FIGURE
    from speech_recognition.train import main

    flags = [*TINY, data, "--precision=fp32", "--steps=1", f"--out={tmp_path}"]
    result = main(flags)
    (last,) = result["gradients_over_training"]
    assert last.items() < result["weight_gradients"].items()
    FIGURE.main([str(tmp_path / "result.json"), f"--out={tmp_path / 'figure2b.png'}"])
    assert (tmp_path / "figure2b.png").read_bytes().startswith(b"\x89PNG")
    assert f"{last['elements']:,} weight gradients" in capsys.readouterr().out


def test_transcripts_are_shown_side_by_side():
    from speech_recognition.compare import transcripts

    sample = {"transcripts": {"said": ["GO"], "heard": ["G"]}}
    assert transcripts({"fp32": sample, "mixed": sample}, None).splitlines() == [
        "said   GO",
        "fp32   G",
        "mixed  G",
    ]
