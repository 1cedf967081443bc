"""After `convert` no model rounds ids to 16 bits: it is mended, or says so."""

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
POLICIES = ("mixed_float16", "float16", "mixed_bfloat16", "bfloat16")
# FP16 has none of these, and beyond 65,504 it has only infinity.
WORDS = np.array([[2049, 30001, 70003], [257, 4097, 99999]], "int32")
SIZE = 100_000
TARGETS = np.ones((2, 1), "float32")


def embedding():
    return L.Embedding(SIZE, 2, name="words")


def sequential():
    return keras.Sequential([embedding(), L.Flatten(), L.Dense(1)])


def of_masked_words():
    words = L.Embedding(SIZE, 2, mask_zero=True, name="words")
    return keras.Sequential([words, L.GlobalAveragePooling1D(), L.Dense(1)])


def in_a_sequential():
    return keras.Sequential([keras.Sequential([embedding()]), L.Flatten(), L.Dense(1)])


def in_a_functional_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, sequential()(inputs))


class InCode(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = sequential()

    def call(self, x):
        return self.net(x)


def of_16_bits():
    inputs = keras.Input((3,), dtype="float16")
    outputs = L.Dense(1)(L.Flatten()(embedding()(inputs)))
    return keras.Model(inputs, outputs)


MENDED = {
    "sequential": sequential,
    "masked": of_masked_words,
    "in a sequential": in_a_sequential,
    "in a functional model": in_a_functional_model,
    "in code": InCode,
    "of 16 bits": of_16_bits,
}


def table_of(model):
    (layer,) = (x for x in model._flatten_layers() if isinstance(x, L.Embedding))
    return layer.embeddings


def rows_trained(model, words):
    """Returns the rows of the table that a step changes."""
    before = np.array(table_of(model), "float32")
    model.train_on_batch(words, TARGETS)
    return np.flatnonzero((np.array(table_of(model), "float32") != before).any(1))


def converted(make, policy):
    keras.config.set_dtype_policy(policy)
    model = make()
    model(np.zeros((2, 3), "int32"))
    return compiled(keras_mp.convert(model))


def compiled(model):
    optimizer = keras_mp.wrap(keras.optimizers.SGD(1.0), loss_scale=1.0)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


@pytest.mark.slow_except("in code-float16", "sequential-float16")
@pytest.mark.xslow_except("*-float16")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MENDED)
def test_a_step_trains_the_rows_of_its_words(name, policy):
    model = converted(MENDED[name], policy)
    np.testing.assert_array_equal(rows_trained(model, WORDS), np.unique(WORDS))
    assert keras_mp.find_overflow(model, WORDS, TARGETS) is None


@pytest.mark.parametrize("name", [n for n in MENDED if n != "in code"])
def test_float_ids_are_looked_up_too(name):
    model = converted(MENDED[name], "mixed_float16")
    words = WORDS.astype("float32")
    np.testing.assert_array_equal(rows_trained(model, words), np.unique(WORDS))


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_plans_and_inspect_look_at_the_same_rows(policy):
    model = converted(sequential, policy)
    plan = keras_mp.plan_precision(model, WORDS, TARGETS)
    assert plan.precisions == {} and not plan.notes
    assert plan.verify(model, WORDS, TARGETS).after.gradient_error <= 0.02
    # Two layers whose results are rounded to 2**-11, and the square of the error.
    assert keras_mp.inspect(model, WORDS, TARGETS).loss_error < 8 * 2.0**-11


def test_ids_are_no_values_that_a_plan_looks_at():
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((3,))
    model = compiled(keras.Model(inputs, L.Dense(1)(L.Flatten()(embedding()(inputs)))))
    plan = keras_mp.plan_precision(model, WORDS.astype("float32"), TARGETS)
    assert plan.precisions == {} and not plan.notes


def test_a_file_keeps_the_ids_whole(tmp_path):
    model = converted(sequential, "mixed_float16")
    expected = model(WORDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(WORDS), expected)


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_plan_precision_mends_a_model_of_keras(policy):
    keras.config.set_dtype_policy(policy)
    model = sequential()
    model.build((None, 3))
    compiled(model)
    plan = keras_mp.plan_precision(model, WORDS, TARGETS)
    assert plan.precisions == {} and not plan.notes
    before = [layer.dtype for layer in model._flatten_layers()]
    assert model._flatten_layers()[1].dtype == "float16" and "int32" not in before
    plan.apply(model)
    np.testing.assert_array_equal(rows_trained(model, WORDS), np.unique(WORDS))


@pytest.mark.parametrize("look", [keras_mp.inspect, keras_mp.find_overflow])
def test_diagnostics_name_the_embedding_of_a_model_of_keras(look):
    keras.config.set_dtype_policy("mixed_float16")
    model = sequential()
    model.build((None, 3))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"'words'.*ids in float16.*convert"):
        look(model, WORDS, TARGETS)


class TakesFloatIds(keras.Model):
    """Keras casts what its code is given."""

    def __init__(self):
        super().__init__()
        self.words, self.flat, self.out = embedding(), L.Flatten(), L.Dense(1)

    def call(self, x):
        return self.out(self.flat(self.words(x)))


def test_code_that_is_given_float_ids_refuses_them():
    model = converted(TakesFloatIds, "mixed_float16")
    with pytest.raises(ValueError, match=r"'words'.*ids in float16"):
        model.fit(WORDS.astype("float32"), TARGETS, verbose=0)
    np.testing.assert_array_equal(rows_trained(model, WORDS), np.unique(WORDS))


# An input that goes elsewhere, too, keeps its dtype.
def beside_another():
    inputs = keras.Input((3,), dtype="float16")
    x = L.Flatten()(embedding()(inputs))
    return keras.Model(inputs, L.Concatenate()([x, inputs]))


def without_embedding():
    return keras.Sequential([L.Dense(1)])


@pytest.mark.parametrize("make", [beside_another, without_embedding])
def test_other_inputs_keep_their_dtype(make):
    keras.config.set_dtype_policy("mixed_float16")
    model = make()
    model.build((None, 3))
    before = [x.dtype for x in model.inputs]
    keras_mp.convert(model)
    assert [x.dtype for x in model.inputs] == before == ["float16"]
