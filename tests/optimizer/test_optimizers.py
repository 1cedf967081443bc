"""Every inner optimizer and option: as the bare one on FP32 variables."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers
from older_versions import until

import keras_mp
from keras_mp import keras_internals

SCALE = 1024.0


def multi_optimizer():
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.SGD(0.1), {"model/kernel": optimizers.Adam(0.1, amsgrad=True)}
        )
    )


ROWS = {
    "sgd": ("SGD", {}),
    "sgd_momentum": ("SGD", {"momentum": 0.9}),
    "sgd_nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop_momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop_centered": ("RMSprop", {"centered": True}),
    "rmsprop_centered_momentum": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "adam": ("Adam", {}),
    "adam_amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.1}),
    "adadelta": ("Adadelta", {}),
    "adagrad": ("Adagrad", {}),
    "adamax": ("Adamax", {}),
    "adafactor": ("Adafactor", {}),
    "nadam": ("Nadam", {}),
    "ftrl": ("Ftrl", {"l1_regularization_strength": 0.01}),
    "ftrl_options": (
        "Ftrl",
        {
            "initial_accumulator_value": 0.25,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.5,
            "l2_shrinkage_regularization_strength": 0.125,
            "beta": 0.5,
        },
    ),
    "lion": ("Lion", {}),
    "lamb": ("Lamb", {}),
    "muon": ("Muon", {}),
    "muon_options": (
        "Muon",
        {"adam_lr_ratio": 0.5, "adam_weight_decay": 0.25, "exclude_layers": ["kernel"]},
    ),
    "schedule_free_adamw": ("ScheduleFreeAdamW", {}),
    "multi_optimizer": ("MultiOptimizer", {}),
}
# Those that fail in their first step without a wrapper, too.
BROKEN = {"Muon"} if keras_internals.KERAS < (3, 13) else set()
# Older versions of Keras lack some.
ROWS = {
    name: row
    for name, row in ROWS.items()
    if hasattr(optimizers, row[0]) and row[0] not in BROKEN
}
OPTIMIZERS = {
    name: lambda cls=cls, kwargs=kwargs: (
        multi_optimizer()
        if cls == "MultiOptimizer"
        else getattr(optimizers, cls)(0.1, **kwargs)
    )
    for name, (cls, kwargs) in ROWS.items()
}
# In eager mode TensorFlow computes Ftrl's square root as a power, which errs by up to
# an ulp, two roundings; the kernel takes the root. A step divides the difference of two
# roots by the rate of 0.1 and multiplies it by a weight below 2: 2 * 2 * 10 * 2.
OF_FTRL = {"ftrl": 80, "ftrl_options": 80}
# Lamb's two norms add up at most 6 squares, in another order: 5 roundings each, which
# the root halves. A step is at most 0.1 of the norm of a master, and that is at most
# sqrt(6) of its largest number: 2 * 2.5 * 0.1 * 2.5 roundings, and the last sum.
# Adafactor adds up means and norms of at most 6 numbers in another order, too:
# v differs by at most 12 roundings, a direction by 6, and a step, with its norms and
# factors, by 20. It is at most 0.1 sqrt(6) of the largest master: 20 * 0.25, and the
# last sum.
ROUNDINGS = {**OF_FTRL, "lamb": 3, "adafactor": 6}
# It has none of its own.
WITHOUT_OPTIONS = {"multi_optimizer"}
# name: dtype of the variables, dtype of the gradients.
POLICIES = {
    "float32": ("float32", "float32"),
    "mixed_float16": ("float32", "float16"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
}


def wrap(inner, **kwargs):
    """Wraps, with a scale of 1024 that never changes, as if the loss were scaled."""
    optimizer = keras_mp.wrap(inner, **{"loss_scale": SCALE, **kwargs})
    optimizer.scale_loss(0.0)
    return optimizer


def assert_slots_are_float32(optimizer):
    slots = [
        variable
        for variable in optimizer.inner_optimizer.variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]
    assert {variable.dtype for variable in slots} <= {"float32"}


def run_against_reference(
    make, weights, gradient_dtype, mode="eager", steps=3, roundings=0
):
    """Steps of the wrapped and of the bare optimizer, compared after each.

    Yields the wrapped optimizer after each step.
    """
    optimizer = wrap(make())
    reference = oracle.Fp32Reference(make(), weights)
    step = oracle.make_step(optimizer, weights, mode)
    reference.assert_equal(optimizer)
    for i in range(steps):
        gradients = oracle.make_gradients(weights, seed=i)
        step(oracle.scaled(gradients, optimizer, gradient_dtype))
        reference.apply([tf.constant(g) for g in gradients])
        reference.assert_equal(optimizer, roundings * (i + 1))
        oracle.assert_weights_are_masters(optimizer, weights)
        yield optimizer
    assert_slots_are_float32(optimizer)
    accumulation = getattr(make(), "gradient_accumulation_steps", None) or 1
    assert int(optimizer.iterations) == steps // accumulation
    assert {m.dtype for m in optimizer.master_weights} == {"float32"}


def assert_every_step_moves_everything(run):
    """Asserts that no comparison was one of two things that stood still."""
    old = None
    for optimizer in run:
        new = [oracle.value(master) for master in optimizer.master_weights]
        if old is not None:
            assert all(np.all(a != b) for a, b in zip(old, new, strict=True))
        old = new


def test_the_table_has_every_optimizer_of_keras():
    others = {"Optimizer", "LossScaleOptimizer", *BROKEN}
    classes = {
        name
        for name in dir(optimizers)
        if isinstance(cls := getattr(optimizers, name), type)
        and issubclass(cls, optimizers.Optimizer)
    }
    found = {type(make()).__name__ for make in OPTIMIZERS.values()}
    assert found == classes - others


@pytest.mark.xslow_except(
    "*-float16", "*-mixed_float16", "sgd-*", "adam-*", "adafactor-*", "muon-*"
)
@pytest.mark.slow_except("*-float16")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_bare_optimizer_to_the_bit(name, policy):
    dtype, gradient_dtype = POLICIES[policy]
    weights = oracle.make_weights(dtype)
    run = run_against_reference(
        OPTIMIZERS[name], weights, gradient_dtype, roundings=ROUNDINGS.get(name, 0)
    )
    assert_every_step_moves_everything(run)
    assert {weight.dtype for weight in weights} == {dtype}


@pytest.mark.xslow_except(
    "*-mixed_float16",
    "sgd-*",
    "sgd_momentum-*",
    "rmsprop_centered_momentum-*",
    "adam*-float16",
    "ada[dgm]*-float16",
    "adafactor-*",
    "nadam-*",
    "ftrl_options-*",
    "l*-float16",
    "m*-float16",
    "schedule_free_adamw-*",
)
@pytest.mark.slow_except("adam-*")
@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, "float16") for name in OPTIMIZERS]
    + [("sgd", "mixed_float16"), ("adam", "mixed_float16")],
)
def test_equals_the_bare_optimizer_under_xla(name, policy):
    # Muon's five Newton-Schulz steps multiply an error by up to 3.4445 each, 485 in
    # all, and its step is 0.1 * 0.2 * sqrt(3) = 0.035 of that: 17 times.
    roundings = oracle.OPERATIONS * (17 if name == "muon" else 1)
    roundings += ROUNDINGS.get(name, 0)
    dtype, gradient_dtype = POLICIES[policy]
    run = run_against_reference(
        OPTIMIZERS[name],
        oracle.make_weights(dtype),
        gradient_dtype,
        mode="xla",
        roundings=roundings,
    )
    assert_every_step_moves_everything(run)


@pytest.mark.parametrize("name", ["sgd_momentum", "adam", "lamb", "adafactor"])
def test_equals_the_bare_optimizer_in_a_graph(name):
    # Grappler may reorder and merge operations, as XLA does.
    run = run_against_reference(
        OPTIMIZERS[name],
        oracle.make_weights("float16"),
        "float16",
        mode="graph",
        roundings=oracle.OPERATIONS,
    )
    assert_every_step_moves_everything(run)


@pytest.mark.parametrize("name", OF_FTRL)
def test_ftrl_equals_the_bare_one_in_a_graph_to_the_bit(name):
    """There TensorFlow, too, computes the power of 1/2 as a square root."""
    weights = oracle.make_weights("float16", [("kernel", (217,))])
    optimizer = wrap(OPTIMIZERS[name]())
    reference = oracle.Fp32Reference(OPTIMIZERS[name](), weights)
    step = oracle.make_step(optimizer, weights, "graph")
    expected = oracle.make_step(reference.optimizer, reference.weights, "graph")
    for i in range(3):
        gradients = oracle.make_gradients(weights, seed=i)
        step(oracle.scaled(gradients, optimizer, "float16"))
        expected([tf.constant(g) for g in gradients])
        reference.assert_equal(optimizer)


@pytest.mark.parametrize("name", OF_FTRL)
def test_is_close_to_the_bare_optimizer_in_float64(name):
    weights = oracle.make_weights("float16", [("kernel", (217,))])
    exact = [keras.Variable(oracle.value(w), dtype="float64") for w in weights]
    optimizer = wrap(OPTIMIZERS[name]())
    reference = oracle.Fp32Reference(OPTIMIZERS[name](), exact)
    for i in range(3):
        gradients = oracle.make_gradients(weights, seed=i)
        optimizer.apply(oracle.scaled(gradients, optimizer, "float16"), weights)
        reference.apply([tf.constant(g) for g in gradients])
        found = [*optimizer.master_weights, *optimizer.inner_optimizer.variables]
        bare = [*reference.weights, *reference.optimizer.variables]
        for variable, expected in zip(found, bare, strict=True):
            oracle.assert_close(
                oracle.value(variable).astype("float64"),
                oracle.value(expected).astype("float64"),
                (oracle.OPERATIONS + ROUNDINGS[name]) * (i + 1),
                variable.path,
            )


def schedule():
    return optimizers.schedules.ExponentialDecay(0.5, decay_steps=1, decay_rate=0.5)


OPTIONS = {
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.25},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrite": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
    "accumulation": {"gradient_accumulation_steps": 2},
    "accumulation_and_ema": {
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "clipnorm": 0.5,
        "weight_decay": 0.1,
    },
    "schedule": {"learning_rate": schedule},
}


def with_options(cls, option, **others):
    def make():
        kwargs = {**others, **OPTIONS[option]}
        learning_rate = kwargs.pop("learning_rate", lambda: 0.1)()
        return cls(learning_rate, **kwargs)

    return make


@pytest.mark.xslow_except(
    "*-eager",
    "clipnorm-float16-xla",
    "schedule-float16-xla",
    "ema_overwrite-float16-xla",
    "accumulation_and_ema-float16-xla",
)
@pytest.mark.slow_except("*-float32-eager")
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("float32", "eager"), ("float16", "eager"), ("float16", "xla")],
)
@pytest.mark.parametrize("option", OPTIONS)
def test_option_acts_as_on_the_bare_optimizer(option, dtype, mode):
    weights = oracle.make_weights(dtype)
    before = [oracle.value(weight) for weight in weights]
    run = run_against_reference(
        with_options(optimizers.Adam, option),
        weights,
        "float16",
        mode=mode,
        steps=4,
        roundings=0 if mode == "eager" else oracle.OPERATIONS,
    )
    list(run)
    for old, weight in zip(before, weights, strict=True):
        assert np.all(old != oracle.value(weight))


# What a kernel does itself, for those optimizers that it knows.
OPTIONS_OF_ALL = ["global_clipnorm", "clipvalue", "weight_decay", "schedule"]


@pytest.mark.xslow_except(
    "*-global_clipnorm-float16",
    "adam-*-float16",
    "lamb-*-float16",
    "adafactor-*-float16",
    "schedule_free_adamw-*-float16",
    "lion-weight_decay-float16",
    "sgd-weight_decay-float16",
)
@pytest.mark.slow_except("adam-*-float16")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("option", OPTIONS_OF_ALL)
@pytest.mark.parametrize("name", [n for n in ROWS if n not in WITHOUT_OPTIONS])
def test_option_acts_on_every_optimizer(name, option, dtype):
    cls, kwargs = ROWS[name]
    make = with_options(getattr(optimizers, cls), option, **kwargs)
    gradient_dtype = "bfloat16" if dtype == "bfloat16" else "float16"
    run = run_against_reference(
        make,
        oracle.make_weights(dtype),
        gradient_dtype,
        roundings=ROUNDINGS.get(name, 0),
    )
    assert_every_step_moves_everything(run)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Lion"])
def test_a_negative_clipvalue_clips_nothing(name):
    def make():
        return getattr(optimizers, name)(0.1, clipvalue=-1.0)

    run = run_against_reference(make, oracle.make_weights("float16"), "float16")
    assert_every_step_moves_everything(run)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_option_changes_the_result(option):
    """Or the test above tests nothing."""
    results = []
    for make in (lambda: optimizers.Adam(0.1), with_options(optimizers.Adam, option)):
        weights = oracle.make_weights("float16")
        *_, optimizer = run_against_reference(make, weights, "float16", steps=4)
        state = [*weights, *optimizer.inner_optimizer.variables]
        results.append({v.path: oracle.value(v).tolist() for v in state})
    assert results[0] != results[1]


def filled(value, dtype, shape=(2,), name="kernel"):
    with keras.name_scope("model"):
        return keras.Variable(np.full(shape, value), dtype=dtype, name=name)


@pytest.mark.slow_except("adamw-inner-*")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("how", ["list", "names"])
@pytest.mark.parametrize("where", ["inner", "wrapper"])
@pytest.mark.parametrize(
    "name",
    [n for n in ("sgd", "adamw", "muon", "multi_optimizer") if n in OPTIMIZERS],
)
def test_exclude_from_weight_decay(name, where, how, dtype):
    kernel, bias = filled(2.0, dtype), filled(2.0, dtype, name="bias")
    make = {
        "sgd": lambda: optimizers.SGD(0.5, weight_decay=0.5),
        "adamw": lambda: optimizers.AdamW(0.5, weight_decay=0.5),
        "muon": lambda: optimizers.Muon(0.5, adam_weight_decay=0.5),
        "multi_optimizer": lambda: optimizers.SGD(0.5, weight_decay=0.5),
    }[name]
    inner = leaf = make()
    optimizer = None
    if where == "wrapper":
        if name == "multi_optimizer":
            leaf = None
        else:
            optimizer = leaf = wrap(inner)
    if leaf is not None:
        excluded = {"var_list": [bias]} if how == "list" else {"var_names": ["bias"]}
        leaf.exclude_from_weight_decay(**excluded)
    if name == "multi_optimizer":
        inner = optimizers.MultiOptimizer(optimizers.OptimizerMap(inner))
    optimizer = optimizer or wrap(inner)
    optimizer.apply([tf.zeros(2, dtype)] * 2, [kernel, bias])
    # A MultiOptimizer decays nothing itself, so an exclusion of its own does nothing,
    # wrapped or not; that of an optimizer inside it holds.
    expected_bias = 1.5 if leaf is None else 2.0
    assert oracle.value(kernel).tolist() == [1.5, 1.5]  # 2 - 2 * 0.5 * 0.5
    assert oracle.value(bias).tolist() == [expected_bias] * 2
    assert oracle.value(optimizer.master_weights[1]).tolist() == [expected_bias] * 2


@until("Keras", 3, 15)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exclude_from_weight_decay_after_build(dtype):
    """Keras means to forbid it, but does not before 3.16: the exclusion holds."""
    kernel, bias = filled(2.0, dtype), filled(2.0, dtype, name="bias")
    optimizer = wrap(optimizers.SGD(0.5, weight_decay=0.5))
    optimizer.build([kernel, bias])
    optimizer.exclude_from_weight_decay(var_list=[bias])
    optimizer.apply([tf.zeros(2, dtype)] * 2)
    assert oracle.value(kernel).tolist() == [1.5, 1.5]
    assert oracle.value(bias).tolist() == [2.0, 2.0]


@pytest.mark.skipif("muon" not in OPTIMIZERS, reason="needs Keras 3.13")
def test_muon_knows_an_embedding_by_the_path_of_its_master():
    weights = oracle.make_weights(
        "float16", [("embeddings", (2, 3)), ("kernel", (2, 3))]
    )
    optimizer = wrap(optimizers.Muon(0.1))
    optimizer.build(weights)
    embeddings_velocity, kernel_velocity = optimizer.inner_optimizer.adam_velocities
    assert embeddings_velocity is not None
    assert kernel_velocity is None


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_schedule_waits_for_a_skipped_step(mode):
    weight = filled(0.0, "float16", shape=(1,))
    steps = optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.25])
    optimizer = wrap(optimizers.SGD(steps), loss_scale=1)
    step = oracle.make_step(optimizer, [weight], mode)
    found = []
    for gradient in (1.0, np.inf, 1.0, np.nan, 1.0):
        step([tf.constant([gradient], "float16")])
        found.append((float(weight[0]), int(optimizer.iterations)))
    assert found == [(-1.0, 1), (-1.0, 1), (-2.0, 2), (-2.0, 2), (-2.25, 3)]
    assert float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_setting_the_learning_rate(mode):
    weight = filled(0.0, "float16", shape=(1,))
    optimizer = wrap(optimizers.SGD(1.0))
    step = oracle.make_step(optimizer, [weight], mode)
    step([tf.constant([SCALE], "float16")])
    assert float(weight[0]) == -1.0
    optimizer.learning_rate = 0.25
    step([tf.constant([SCALE], "float16")])
    assert float(weight[0]) == -1.25
    assert float(optimizer.learning_rate) == 0.25
    assert float(optimizer.inner_optimizer.learning_rate) == 0.25


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("constraint", "initial", "expected"),
    [
        # One step takes 1 from each element before the constraint.
        (keras.constraints.NonNeg(), [[0.5], [3.0]], [[0.0], [2.0]]),
        (keras.constraints.MaxNorm(2.0), [[4.0], [1.0]], [[2.0], [0.0]]),
        (keras.constraints.UnitNorm(), [[1.0], [3.0]], [[0.0], [1.0]]),
    ],
    ids=["non_neg", "max_norm", "unit_norm"],
)
def test_constraint_acts_on_the_master(constraint, initial, expected, dtype, mode):
    weight = keras.Variable(initial, dtype=dtype)
    weight.constraint = constraint
    optimizer = wrap(optimizers.SGD(1.0))
    step = oracle.make_step(optimizer, [weight], mode)
    step([tf.fill((2, 1), tf.cast(SCALE, dtype))])
    # The norm's epsilon of 1e-7 and its square root: three FP32 roundings. The
    # weight's own rounding takes it to the expected value.
    master = oracle.value(optimizer.master_weights[0])
    oracle.assert_close(master, np.array(expected, "float32"), roundings=3)
    oracle.assert_weights_are_masters(optimizer, [weight])
    assert weight.dtype == dtype


def sparse(values, indices, rows, dtype, index_dtype="int32"):
    return tf.IndexedSlices(
        tf.constant(values, dtype),
        tf.constant(indices, index_dtype),
        tf.constant((rows, 2)),
    )


def make_table(dtype):
    """Weights of an embedding, and a bias whose gradient is dense."""
    return oracle.make_weights(dtype, [("embeddings", (5, 2)), ("bias", (2,))])


SPARSE_STEPS = [[1, 3, 1], [0, 0, 0], [4, 2, 4], [1, 2, 3]]


def sparse_gradients(i):
    """FP32 values and indices with duplicates, and a dense gradient."""
    indices = SPARSE_STEPS[i]
    values, dense = oracle.make_gradients(
        [tf.zeros((len(indices), 2)), tf.zeros(2)], seed=100 + i
    )
    return values, indices, dense


def run_sparse(make, dtype, mode, index_dtype="int32", roundings=0):
    weights = make_table(dtype)
    optimizer = wrap(make())
    reference = oracle.Fp32Reference(make(), weights)
    step = oracle.make_step(optimizer, weights, mode)
    for i in range(len(SPARSE_STEPS)):
        values, indices, dense = sparse_gradients(i)
        scaled_slices = sparse(values * SCALE, indices, 5, "float16", index_dtype)
        step([scaled_slices, tf.constant(dense * SCALE, "float16")])
        reference.apply([sparse(values, indices, 5, "float32"), tf.constant(dense)])
        reference.assert_equal(optimizer, roundings * (i + 1))
        oracle.assert_weights_are_masters(optimizer, weights)
    accumulation = getattr(make(), "gradient_accumulation_steps", None) or 1
    assert int(optimizer.iterations) == len(SPARSE_STEPS) // accumulation


@pytest.mark.xslow_except("*-float16", "sgd-*", "adam-*")
@pytest.mark.slow_except("sgd-*", "adam-*")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_with_duplicates(name, dtype):
    run_sparse(OPTIMIZERS[name], dtype, "eager", roundings=ROUNDINGS.get(name, 0))


@pytest.mark.xslow_except("sgd", "rmsprop", "adagrad", "adam")
@pytest.mark.slow_except("adam")
@pytest.mark.parametrize(
    "name", ["sgd", "rmsprop", "adagrad", "adadelta", "sgd_momentum", "adam"]
)
def test_sparse_gradients_under_xla(name):
    run_sparse(OPTIMIZERS[name], "float16", "xla", roundings=oracle.OPERATIONS)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_sparse_gradients_in_a_graph(index_dtype):
    run_sparse(OPTIMIZERS["sgd"], "float16", "graph", index_dtype, oracle.OPERATIONS)


@pytest.mark.xslow_except(
    "SGD-*", "Adagrad-accumulation_and_ema", "Adagrad-ema_overwrite"
)
@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("cls", [optimizers.SGD, optimizers.Adagrad])
def test_sparse_gradients_with_option(cls, option):
    run_sparse(with_options(cls, option), "float16", "eager")


@pytest.mark.xslow_except("*-eager", "sgd-xla", "adagrad-xla")
@pytest.mark.slow_except("*-eager")
@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adagrad", "adadelta"])
def test_rows_without_a_gradient_are_not_written(name, mode):
    weight = make_table("float16")[0]
    optimizer = wrap(OPTIMIZERS[name]())
    step = oracle.make_step(optimizer, [weight], mode)
    master = optimizer.master_weights[0]
    old_master = oracle.value(master)
    # Someone else writes to row 3, which has no gradient, and to row 1, which has.
    outside = oracle.value(weight)
    outside[3] = [7.0, -7.0]
    outside[1] = [5.0, 5.0]
    weight.assign(outside)
    step([sparse([[SCALE] * 2] * 3, [1, 0, 1], 5, "float16")])
    new_weight, new_master = oracle.value(weight), oracle.value(master)
    oracle.assert_same_bits(new_weight[2:], outside[2:])
    oracle.assert_same_bits(new_master[2:], old_master[2:])
    assert np.all(new_master[0] < old_master[0])
    assert np.all(new_master[1] < 5) and np.all(new_master[1] > 4)
    # The next step that touches row 3 starts from what was written there.
    step([sparse([[0.0, 0.0]], [3], 5, "float16")])
    assert oracle.value(master)[3].tolist() == [7.0, -7.0]
    assert oracle.value(weight)[3].tolist() == [7.0, -7.0]


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_duplicates_are_summed_in_fp32(mode):
    weight = filled(0.0, "float16", shape=(2, 2))
    optimizer = wrap(optimizers.SGD(2.0**-10), loss_scale=1)
    step = oracle.make_step(optimizer, [weight], mode)
    # 49152 + 49152 = 98304 is not finite in FP16; 2048 + 1 is 2048 there.
    step([sparse([[49152, 2048], [49152, 1]], [1, 1], 2, "float16")])
    master = oracle.value(optimizer.master_weights[0])
    assert master.tolist() == [[0, 0], [-96, -2049 / 1024]]
    assert int(optimizer.skipped_steps) == 0


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_sparse_gradient_without_rows(name):
    weight = make_table("float16")[0]
    before = oracle.value(weight)
    optimizer = wrap(OPTIMIZERS[name]())
    optimizer.apply([sparse(np.zeros((0, 2)), [], 5, "float16")], [weight])
    oracle.assert_same_bits(oracle.value(weight), before)
    assert int(optimizer.iterations) == 1
    assert int(optimizer.skipped_steps) == 0


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_embedding_layer_gives_sparse_gradients_in_fit(rounding):
    inputs = keras.Input((2,), dtype="int32")
    embedding = keras.layers.Embedding(4, 2, dtype="float16")
    model = keras.Model(inputs, embedding(inputs))
    embedding.set_weights([np.full((4, 2), 0.5, "float16")])
    optimizer = keras_mp.wrap(optimizers.SGD(1.0), loss_scale=8, rounding=rounding)
    model.compile(optimizer, loss="mse", jit_compile=False)
    model.fit(np.array([[1, 1]]), np.zeros((1, 2, 2)), verbose=0)
    # The loss is the mean of 4 squares; each element of row 1 is in 2 of them, so
    # its gradient is 2 * 2 * 0.5 / 4 = 0.5.
    expected = [[0.5, 0.5], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    assert oracle.value(embedding.embeddings).tolist() == expected
    assert oracle.value(optimizer.master_weights[0]).tolist() == expected


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradient_of_none(dtype, mode):
    weights = oracle.make_weights(dtype)
    make = OPTIMIZERS["adam"]
    optimizer, reference = wrap(make()), oracle.Fp32Reference(make(), weights)
    bias = oracle.value(weights[1])
    step = oracle.make_step(optimizer, weights, mode)
    gradients = [oracle.make_gradients(weights, seed=0)[0], None]
    with pytest.warns(UserWarning, match=r"Gradients do not exist.*bias"):
        step(oracle.scaled(gradients, optimizer, dtype))
    with pytest.warns(UserWarning, match=r"Gradients do not exist.*bias"):
        reference.apply(gradients)
    reference.assert_equal(optimizer, 0 if mode == "eager" else oracle.OPERATIONS)
    oracle.assert_weights_are_masters(optimizer, weights)
    oracle.assert_same_bits(oracle.value(weights[1]), bias)


def test_gradients_of_none_only():
    weights = oracle.make_weights("float16")
    with pytest.raises(ValueError, match=r"(?s)No gradients.*model/kernel.*the tape"):
        wrap(optimizers.SGD(1.0)).apply([None, None], weights)


def test_no_gradients_are_no_step():
    optimizer = wrap(optimizers.SGD(1.0))
    optimizer.build(oracle.make_weights("float16"))
    optimizer.apply([])
    optimizer.apply([], [])
    assert int(optimizer.iterations) == 0
    assert int(optimizer.step_counter) == 0


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([tf.ones(2)], "Received: 1 gradients, 2 variables"),
        ([tf.ones(2)] * 3, "Received: 3 gradients, 2 variables"),
    ],
    ids=["fewer", "more"],
)
def test_as_many_gradients_as_variables(gradients, message):
    weights = [filled(0.0, "float16"), filled(0.0, "float16")]
    optimizer = wrap(optimizers.SGD(1.0))
    optimizer.build(weights)
    with pytest.raises(ValueError, match=message):
        optimizer.apply(gradients)


def test_unknown_variable():
    optimizer = wrap(optimizers.SGD(1.0))
    optimizer.build([filled(0.0, "float16")])
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.ones(2, "float16")], [filled(0.0, "float16")])


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_subset_of_the_variables_in_another_order(dtype, mode):
    weights = oracle.make_weights(dtype, [(name, (2,)) for name in "abc"])
    make = OPTIMIZERS["adam"]
    optimizer, reference = wrap(make()), oracle.Fp32Reference(make(), weights)
    optimizer.build(weights)
    untouched = oracle.value(weights[1])

    def step(gradients):
        optimizer.apply(gradients, [weights[2], weights[0]])

    step = step if mode == "eager" else tf.function(step, jit_compile=True)
    gradients = oracle.make_gradients([weights[2], weights[0]], seed=0)
    step(oracle.scaled(gradients, optimizer, dtype))
    reference.optimizer.apply(gradients, [reference.weights[2], reference.weights[0]])
    reference.assert_equal(optimizer, 0 if mode == "eager" else oracle.OPERATIONS)
    oracle.assert_same_bits(oracle.value(weights[1]), untouched)
    oracle.assert_weights_are_masters(optimizer, weights)


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_overwrite_with_gradient(dtype, mode):
    """As the scale of float8 training: the gradient is the new value."""
    overwritten, weight = filled(1.0, dtype, name="amax"), filled(1.0, dtype)
    overwritten.overwrite_with_gradient = True
    optimizer = wrap(optimizers.SGD(0.25, momentum=0.5))
    step = oracle.make_step(optimizer, [overwritten, weight], mode)
    step([tf.constant([3.0, 5.0], dtype), tf.fill(2, tf.cast(SCALE, dtype))])
    assert oracle.value(overwritten).tolist() == [3.0, 5.0]
    assert oracle.value(optimizer.master_weights[1]).tolist() == [0.75, 0.75]
    is_own_master = optimizer.master_weights[0] is overwritten
    assert is_own_master == (dtype == "float32")
    assert overwritten.dtype == dtype


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_overwrite_with_gradient_waits_for_a_skipped_step(mode):
    overwritten, weight = filled(1.0, "float32", name="amax"), filled(1.0, "float16")
    overwritten.overwrite_with_gradient = True
    optimizer = wrap(optimizers.SGD(0.5))
    step = oracle.make_step(optimizer, [overwritten, weight], mode)
    step([tf.constant([3.0, 5.0]), tf.constant([np.inf, 0], "float16")])
    assert oracle.value(overwritten).tolist() == [1.0, 1.0]


def test_what_is_the_models_is_not_saved_with_the_optimizer_again():
    half = keras.Variable([1.0], dtype="float16")
    full = keras.Variable([1.0], dtype="float32")
    optimizer = keras_mp.wrap(optimizers.SGD(momentum=0.5))
    optimizer.build([half, full])
    master = optimizer.master_weights[0]
    assert optimizer.master_weights[1] is full
    assert [v is master for v in optimizer.variables].count(True) == 1
    assert not any(v is full or v is half for v in optimizer.variables)


def test_float64_variables_are_their_own_masters():
    weights = oracle.make_weights("float64")
    make = OPTIMIZERS["adam"]
    optimizer, reference = wrap(make()), oracle.Fp32Reference(make(), weights)
    step = oracle.make_step(optimizer, weights, "eager")
    third = [np.full(weight.shape, 1 / 3) for weight in weights]
    step([tf.constant(g * SCALE) for g in third])
    reference.apply([tf.constant(g) for g in third])
    reference.assert_equal(optimizer)
    assert optimizer.master_weights == weights
    assert {weight.dtype for weight in weights} == {"float64"}
    slots = optimizer.inner_optimizer.variables[2:]
    assert {slot.dtype for slot in slots} == {"float64"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_variables_of_tensorflow(dtype):
    weight = tf.Variable(tf.zeros(2, dtype), name="w")
    optimizer = wrap(optimizers.SGD(1.0))
    optimizer.apply([tf.constant([SCALE, SCALE / 2048], "float16")], [weight])
    assert weight.numpy().tolist() == [-1.0, -(2.0**-11)]
    assert weight.dtype == dtype


def test_variables_of_several_dtypes_in_one_step():
    dtypes = ("float16", "float32", "bfloat16", "float64")
    weights = [filled(1.0, dtype, name=dtype) for dtype in dtypes]
    optimizer = wrap(optimizers.SGD(2.0**-10))
    gradients = [tf.fill(2, tf.cast(SCALE, dtype)) for dtype in dtypes]
    optimizer.apply(gradients, weights)
    # 1 - 2^-10 has one bit more than bfloat16 can hold of 1 - 2^-8.
    assert [float(weight[0]) for weight in weights] == [
        1 - 2**-10,
        1 - 2**-10,
        1.0,
        1 - 2**-10,
    ]
    masters = optimizer.master_weights
    assert [float(master[0]) for master in masters] == [1 - 2**-10] * 4
    assert [m.dtype for m in masters] == ["float32"] * 3 + ["float64"]
    assert [m is w for m, w in zip(masters, weights, strict=True)] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (0,), (1,), (217,)], ids=str)
@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_shapes(shape, mode):
    weight = filled(1.0, "float16", shape=shape)
    optimizer = wrap(optimizers.SGD(0.5, momentum=0.5))
    step = oracle.make_step(optimizer, [weight], mode)
    step([tf.fill(shape, tf.constant(SCALE, "float16"))])
    oracle.assert_same_bits(oracle.value(weight), np.full(shape, 0.5, "float16"))
    master = oracle.value(optimizer.master_weights[0])
    oracle.assert_same_bits(master, np.full(shape, 0.5, "float32"))


def test_frozen_layers():
    frozen = keras.layers.Dense(2, dtype="float16", trainable=False)
    trained = keras.layers.Dense(2, dtype="float16")
    model = keras.Sequential([keras.Input((2,)), frozen, trained])
    optimizer = keras_mp.wrap("adam", loss_scale=8)
    model.compile(optimizer, loss="mse", jit_compile=False)
    before = [oracle.value(weight) for weight in model.weights]
    model.fit(np.ones((2, 2)), np.full((2, 2), 9.0), verbose=0)
    after = [oracle.value(weight) for weight in model.weights]
    for old, new in zip(before[:2], after[:2], strict=True):
        oracle.assert_same_bits(new, old)
    assert all(np.all(o != n) for o, n in zip(before[2:], after[2:], strict=True))
    paths = [master.path for master in optimizer.master_weights]
    assert paths == [weight.path for weight in trained.weights]
