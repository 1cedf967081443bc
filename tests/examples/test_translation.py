"""The translation example: its parts, and all of it on 200 sentence pairs."""

import gzip
import json
import lzma
import math
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS
from wrapping import optimizer_for

# mixed-no-masters differs from mixed in what a callback does after a step.
STEPS = sorted(PRECISIONS.keys() - FORMS.keys() - {"mixed-no-masters"})

# --- data.py ---------------------------------------------------------------


def write_zip(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_about.txt", "not sentences")
        archive.writestr("fra.txt", content)


WRITERS = {
    "pairs.tsv": lambda path, content: path.write_bytes(content),
    "pairs.tsv.gz": lambda path, content: path.write_bytes(gzip.compress(content)),
    "pairs.tsv.xz": lambda path, content: path.write_bytes(lzma.compress(content)),
    "pairs.zip": write_zip,
}


@pytest.mark.parametrize("name", WRITERS)
def test_reads_plain_and_compressed_files(tmp_path, name):
    from translation.data import load_pairs

    content = "Go.\tVa !\nRun!\tCours\u202f!\tCC-BY 2.0\n".encode()
    WRITERS[name](tmp_path / name, content)
    expected = [("Go.", "Va !"), ("Run!", "Cours\u202f!")]
    assert load_pairs(str(tmp_path / name)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "Received: .*does not exist. Check the path", id="missing"),
        pytest.param(b"", "at least one sentence pair. Received: .*empty", id="empty"),
        pytest.param(b"Go.\n", "English TAB French.*line 1, 1 column", id="1 column"),
        pytest.param(b"a\tb\tc\td\n", "line 1, 4 column", id="4 columns"),
        pytest.param(b"Go.\tVa !\nRun!\t\n", "line 2, 2 column", id="no French"),
        pytest.param(b"Go.\tVa !\nv\xe9\tb\n", "UTF-8. .*line 2.*iconv", id="latin-1"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, content, message):
    from translation.data import load_pairs

    path = tmp_path / "pairs.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_pairs(str(path))


def test_tfds_says_what_to_install(monkeypatch):
    from translation.data import load_pairs

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match="pip install tensorflow-datasets"):
        load_pairs("tfds:wmt15_translate/fr-en")


@pytest.mark.parametrize(
    ("overlong", "expected"),
    [("drop", [(["b"], ["c"])]), ("truncate", [(["A"], ["x", "y"]), (["b"], ["c"])])],
)
def test_overlong_pairs(overlong, expected):
    from translation.data import prepare

    pairs = [("A a", "x y z"), ("b", "c")]
    assert prepare(pairs, 1, 2, overlong, lowercase=False) == expected


def test_all_pairs_overlong():
    from translation.data import prepare

    with pytest.raises(ValueError, match="max_source=1, max_target=1, 1 pair"):
        prepare([("a b", "c d")], 1, 1, "drop", lowercase=True)


def test_split_shares_no_english_sentence():
    from translation.data import split

    pairs = [([f"e{i // 3}"], [f"f{i}"]) for i in range(300)]
    train, test = split(pairs, held_out=30, seed=0)
    assert len(test) == 30
    assert len(train) == 270
    assert not {e[0] for e, _ in train} & {e[0] for e, _ in test}
    assert (train, test) == split(pairs, held_out=30, seed=0)


def test_split_leaves_pairs_to_train_on():
    from translation.data import split

    with pytest.raises(ValueError, match="Received: held_out=5 of 2 pair"):
        split([(["a"], ["b"]), (["c"], ["d"])], held_out=5, seed=0)


# --- vocabulary.py and batches.py ------------------------------------------


def test_tokenize_and_detokenize():
    from translation.vocabulary import detokenize, tokenize

    tokens = tokenize("Ouvre l'outil (Find), d\u2019accord.", lowercase=True)
    assert " ".join(tokens) == "ouvre l' outil ( find ) , d\u2019 accord ."
    assert detokenize(tokens) == "ouvre l'outil (find), d\u2019accord."


def test_vocabulary():
    from translation.vocabulary import EOS, PAD, UNK, Vocabulary

    words = Vocabulary([["b", "a", "a"], ["c", "b", "a"]], size=6)
    assert words.words[4:] == ["a", "b"]
    assert words.encode(["b", "c", "a"]) == [5, UNK, 4]
    assert words.decode([5, 4, EOS, 4, PAD]) == ["b", "a"]


def pairs_of_length(*lengths):
    return [(["x"] * n, ["y"] * (n + 1)) for n in lengths]


def test_batches_come_from_one_bucket():
    from translation.batches import encode, training_batches
    from translation.vocabulary import EOS, GO, Vocabulary

    pairs = pairs_of_length(*[1, 2, 5, 6] * 8)
    words = Vocabulary([["x", "y"]], size=6)
    examples = encode(pairs, words, words, reverse=False)
    batches = training_batches(examples, [[2, 3], [6, 7]], batch=4, seed=0)
    for (source, previous), labels in batches.take(12):
        lengths = np.count_nonzero(source, axis=1)
        assert set(lengths) <= {1, 2} or set(lengths) <= {5, 6}
        assert labels.shape == previous.shape == (4, max(lengths) + 2)
        assert np.all(previous[:, 0] == GO)
        assert np.all(previous[:, 1:] == labels[:, :-1])
        assert np.all(np.count_nonzero(labels == EOS, axis=1) == 1)


@pytest.mark.parametrize(
    ("machine", "expected"), [(0, [[0, 1], [4, 5]]), (1, [[2, 3]])]
)
def test_a_batch_is_cut_into_shares(machine, expected):
    from translation.batches import shares

    x = np.arange(8).reshape(1, 8, 1)
    batches = tf.data.Dataset.from_tensor_slices(((x, x), x + 10)).repeat()
    context = tf.distribute.InputContext(2, machine, num_replicas_in_sync=4)
    found = [
        (source[:, 0].numpy().tolist(), labels[:, 0].numpy().tolist())
        for (source, _), labels in shares(batches)(context).take(len(expected))
    ]
    assert found == [(rows, [10 + row for row in rows]) for rows in expected]


def test_source_is_reversed():
    from translation.batches import encode
    from translation.vocabulary import EOS, Vocabulary

    words = Vocabulary([["a", "b", "c"]], size=7)
    examples = encode([(["a", "b", "c"], ["a"])], words, words, reverse=True)
    source, target = next(iter(examples.as_numpy_iterator()))
    assert source.tolist() == [6, 5, 4]
    assert target.tolist() == [4, EOS]


# --- model.py, schedules.py, decoding.py -----------------------------------


def test_perplexity_by_hand():
    from translation.model import Perplexity

    metric = Perplexity()
    entropy = tf.math.log([[2.0, 8.0], [4.0, 1e9]])
    metric.update_state(entropy, tf.constant([[1.0, 1.0], [1.0, 0.0]]))
    # exp((ln 2 + ln 8 + ln 4) / 3) = 64 ** (1 / 3) = 4
    assert math.isclose(metric.result(), 4.0, rel_tol=1e-6)


def make_model(**changes):
    from translation.model import Translator

    options = {
        "units": 8,
        "num_layers": 1,
        "bidirectional": True,
        "attention": "luong",
        "dropout": 0.0,
        "output_bias": False,
        "sampled_softmax": 0,
        "loss": "sum",
    }
    model = Translator(9, 11, **options | changes)
    model.build()
    return model


MODELS = [
    pytest.param({}, id="one bidirectional layer"),
    pytest.param({"num_layers": 2}, id="two layers"),
    pytest.param({"bidirectional": False, "num_layers": 2}, id="one direction"),
    pytest.param(
        {
            "attention": "additive",
            "bidirectional": False,
            "num_layers": 3,
            "output_bias": True,
            "sampled_softmax": 4,
            "loss": "mean",
        },
        id="legacy",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("options", MODELS)
def test_source_padding_changes_nothing(options):
    model = make_model(**options)
    source, previous = tf.constant([[4, 5, 6]]), tf.constant([[1, 7]])
    padded = tf.pad(source, [[0, 0], [0, 2]])
    np.testing.assert_allclose(
        model((source, previous)), model((padded, previous)), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "float16"])
@pytest.mark.parametrize("options", MODELS)
def test_loss_is_fp32_and_variables_follow_the_policy(options, policy):
    import keras

    keras.config.set_dtype_policy(policy)
    model = make_model(**options)
    source, labels = tf.constant([[4, 5], [6, 0]]), tf.constant([[7, 2], [2, 0]])
    with tf.GradientTape() as tape:
        outputs = model((source, tf.constant([[1, 7], [1, 0]])), training=True)
        loss = model.compute_loss(None, labels, outputs)
    gradients = tape.gradient(loss, model.trainable_variables)
    assert outputs.dtype == policy
    assert loss.dtype == "float32"
    assert {g.dtype.name for g in gradients} == {policy}


@pytest.mark.slow_except("legacy-mixed")
@pytest.mark.xslow_except(
    "*-mixed", "legacy-pseudo-fp16", "two layers-plain-fp16", "one direction-fp32"
)
@pytest.mark.parametrize("precision", STEPS)
@pytest.mark.parametrize("options", MODELS[1:])
def test_one_step_in_every_precision(options, precision, monkeypatch):
    import keras

    setting = PRECISIONS[precision]
    if setting.computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(setting.dtype_policy)
    model = make_model(**options)
    # So large that every weight moves by more than a unit of FP16.
    optimizer = optimizer_for(PRECISIONS[precision], keras.optimizers.SGD(1024.0))
    model.compile(optimizer, run_eagerly=True)
    before = [weight.numpy() for weight in model.trainable_variables]
    previous, labels = np.array([[1, 7], [1, 0]]), np.array([[7, 2], [2, 0]])
    inputs = (np.array([[4, 5], [6, 0]]), previous)
    metrics = model.train_on_batch(inputs, labels, return_dict=True)
    assert math.isfinite(metrics["loss"])
    after = [weight.numpy() for weight in model.trainable_variables]
    assert all(np.isfinite(weight).all() for weight in after)
    # Attention that was not trained looks everywhere, whatever scores it gives.
    moved = [(old != new).any() for old, new in zip(before, after, strict=True)]
    assert np.mean(moved) > 0.5
    assert moved[-1]


def test_loss_is_summed_over_a_sentence():
    model = make_model()
    labels = tf.constant([[4, 5, 2], [4, 2, 0]])
    outputs = tf.zeros((2, 3, 8))  # no bias: all 11 words are as probable
    loss = model.compute_loss(None, labels, outputs, training=False)
    assert math.isclose(loss, (3 + 2) / 2 * math.log(11), rel_tol=1e-6)
    assert math.isclose(model.perplexity.result(), 11, rel_tol=1e-6)


def test_decay_on_worse():
    import keras
    from translation.schedules import DecayOnWorse

    callback = DecayOnWorse(factor=0.5)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    callback.model.compile(keras.optimizers.SGD(1.0), "mse")
    rates = []
    for epoch, loss in enumerate([5.0, 4.0, 3.0, 4.5, 4.6, 4.4]):
        callback.on_epoch_end(epoch, {"loss": loss})
        rates.append(float(callback.model.optimizer.learning_rate))
    assert rates == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    # One that resumes, with the losses of the log.
    resumed = DecayOnWorse(factor=0.5, losses=callback.losses[:4])
    resumed.set_model(callback.model)
    resumed.on_epoch_end(4, {"loss": 4.6})
    assert float(callback.model.optimizer.learning_rate) == 0.25


@pytest.mark.slow
def test_beam_of_one_is_greedy():
    from translation.decoding import beam_search, greedy_search, translate

    model = make_model(num_layers=2)
    for variable in model.trainable_variables:
        variable.assign(tf.random.normal(variable.shape, stddev=0.8))
    sources = tf.data.Dataset.from_tensors(tf.random.uniform((20, 5), 4, 9, tf.int32))
    shared, carry = model.encode(next(iter(sources)))

    def step(carry, words):
        scores, carry = model.advance(shared, carry, tf.constant(words, tf.int32))
        return scores.numpy(), carry

    greedy = greedy_search(step, carry, 20, 6)
    assert beam_search(step, carry, 20, 6, beam=1) == greedy
    assert translate(model, sources, 6) == greedy
    assert len({tuple(sentence) for sentence in greedy}) > 1


def test_beam_finds_what_greedy_misses():
    from translation.decoding import beam_search, greedy_search
    from translation.vocabulary import EOS

    # Word 4 is the better first word, but only word 5 has a good second one.
    after = {1: {4: 0.6, 5: 0.4}, 4: {4: 0.4, 5: 0.3, EOS: 0.3}, 5: {EOS: 1.0}}
    table = np.full((6, 6), 1e-9)
    for word, chances in after.items():
        for following, chance in chances.items():
            table[word, following] = chance

    def step(carry, words):
        return np.log(table[words]), carry

    carry = (tf.zeros((2, 1)),)
    assert greedy_search(step, carry, 1, 2) == [[4, 4]]
    assert beam_search(step, carry, 1, 2, beam=2) == [[5, EOS]]


def test_bleu_counts_a_sentence_once_with_all_its_references():
    from translation.evaluation import bleu

    english = ["the cat sleeps", "the cat sleeps", "go now"]
    french = ["le chat dort bien .", "le chat noir dort .", "va t' en vite !"]
    found = ["le chat noir dort .", "le chat noir dort .", "va t' en vite !"]
    assert math.isclose(bleu(english, french, found), 100)
    assert bleu(english[:1] + english[2:], french[:1] + french[2:], found[1:]) < 90


# --- train.py and compare.py -------------------------------------------------

TINY = ["--units=16", "--batch=16", "--held-out=20", "--beam=2", "--eval-every=2"]
TINY += ["--steps=4", "--verbose=0", "--dropout=0", "--decay=none"]


@pytest.fixture
def corpus(tmp_path):
    """200 pairs of a toy language: each English word is one French word."""
    nouns = [f"noun{i}" for i in range(20)]
    verbs = [f"verb{i}" for i in range(10)]
    lines = [f"{n} {v}.\tle {n} {v} .\n" for n in nouns for v in verbs]
    path = tmp_path / "toy.tsv"
    path.write_text("".join(lines), encoding="utf-8")
    return [f"--data={path}"]


def check(result, folder):
    log = result["log"]
    assert len(log) == 2
    assert log[-1]["val_perplexity"] < log[0]["perplexity"]
    assert result["measures"]["held-out perplexity"] == log[-1]["val_perplexity"]
    assert result["measures"].keys() >= {"BLEU greedy", "BLEU beam 2"}
    assert result["peak_mb"] > 0
    assert json.loads((folder / "result.json").read_text()) == result
    assert len(translations(folder)["beam 2"]) == 20


def translations(folder):
    return json.loads((folder / "translations.json").read_text())


@pytest.mark.xslow
def test_train_in_fp32(corpus, tmp_path):
    from translation.train import main

    result = main([*TINY, *corpus, "--precision=fp32", f"--out={tmp_path}"])
    check(result, tmp_path)
    assert result["loss_scale"] is None


@pytest.mark.xslow
def test_train_in_mixed_precision_and_resume(corpus, tmp_path):
    from translation.train import main

    flags = [*TINY, *corpus, "--precision=mixed", "--dropout=0.2"]
    whole = main([*flags, f"--out={tmp_path / 'whole'}"])
    check(whole, tmp_path / "whole")
    assert whole["loss_scale"] > 1
    folder = tmp_path / "parts"
    main([*flags, f"--out={folder}", "--steps=2"])
    # What a kill before the next checkpoint, and one inside of a row, leave there.
    log = (folder / "log.csv").read_text()
    row = log.splitlines(keepends=True)[-1]
    (folder / "log.csv").write_text(f"{log}{row}{row[:9]}")
    parts = main([*flags, f"--out={folder}", "--resume"])
    assert parts["measures"] == whole["measures"]
    assert parts["loss_scale"] == whole["loss_scale"]
    assert perplexities(parts) == perplexities(whole)
    assert translations(folder) == translations(tmp_path / "whole")


def perplexities(result):
    return [(row["perplexity"], row["val_perplexity"]) for row in result["log"]]


@pytest.fixture
def mirrored(strategy, monkeypatch):
    """Has `--strategy=mirrored` mean the replicas of all other tests."""
    from translation import strategies

    monkeypatch.setitem(strategies.STRATEGIES, "mirrored", lambda: strategy)
    return "--strategy=mirrored"


@pytest.mark.xslow
def test_train_on_replicas(corpus, tmp_path, mirrored, monkeypatch):
    from translation import train

    monkeypatch.setattr(train, "translate", lambda *_: [[]] * 21)
    flags = [*TINY, *corpus, "--precision=mixed", "--held-out=21", "--no-bidirectional"]
    alone = train.main([*flags, f"--out={tmp_path / 'alone'}"])
    both = train.main([*flags, mirrored, f"--out={tmp_path / 'both'}"])
    # The same but for roundings of 2^-11, which is far from 1% of what is learned.
    learned = alone["log"][0]["val_perplexity"] - alone["log"][-1]["val_perplexity"]
    np.testing.assert_allclose(
        perplexities(both), perplexities(alone), rtol=0, atol=0.01 * learned
    )
    assert both["loss_scale"] == alone["loss_scale"]


def test_a_batch_that_replicas_cannot_share(mirrored):
    from translation.train import main

    with pytest.raises(ValueError, match=r"multiple of .*: --batch 15, 2 replicas"):
        main(["--batch=15", mirrored])


def test_a_run_of_several_workers_goes_on_in_one_process(tmp_path):
    from translation.train import make_run

    flags = ["--precision=mixed", f"--out={tmp_path}"]
    make_run([*flags, "--strategy=multiworker"])
    with pytest.raises(ValueError, match="strategy: 'multiworker' there, 'none'"):
        make_run([*flags, "--strategy=none"])  # would begin anew
    run = make_run([*flags, "--strategy=none", "--resume"])
    assert (run.out, run.args.strategy) == (tmp_path, "none")


@pytest.mark.xslow
def test_resume_of_a_run_that_is_done_and_a_new_one_in_its_place(corpus, tmp_path):
    from translation.train import main

    flags = [*TINY, *corpus, "--precision=mixed", f"--out={tmp_path}"]
    first = main(flags)
    # It may have been killed before it wrote the result.
    (tmp_path / "result.json").unlink()
    again = main([*flags, "--resume"])
    assert again["measures"] == first["measures"]
    assert (tmp_path / "result.json").is_file()
    anew = main(flags)
    assert perplexities(anew) == perplexities(first)


@pytest.mark.xslow
def test_legacy_preset_runs(corpus, tmp_path):
    from translation.train import main

    flags = ["--preset=legacy", *TINY, *corpus, "--sampled-softmax=8"]
    result = main([*flags, "--precision=mixed", f"--out={tmp_path}"])
    assert math.isfinite(result["measures"]["held-out perplexity"])


@pytest.mark.xslow
def test_step_time(corpus, capsys):
    from translation.step_time import RUNS, main

    main(["--steps=1", "--units=8", "--batch=16", *corpus])
    rows = capsys.readouterr().out.splitlines()[-len(RUNS) :]
    assert [row.split("|")[1].strip() for row in rows] == list(RUNS)
    assert rows[0].endswith("| 1.00 |")


def test_translations_are_shown_side_by_side():
    from translation.compare import translations

    sample = {"english": ["go."], "french": ["va !"], "greedy": ["va."]}
    results = {"fp32": {"translations": sample}, "mixed": {"translations": sample}}
    assert translations(results, None).splitlines() == [
        "English  go.",
        "French   va !",
        "fp32     va.",
        "mixed    va.",
    ]


def test_shipped_sentences():
    from translation.data import load_pairs, prepare

    pairs = load_pairs("libreoffice-help")
    assert len(pairs) > 10_000
    assert len(prepare(pairs, 10, 14, "drop", lowercase=True)) == len(pairs)
