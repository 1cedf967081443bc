"""What `keras_mp.keras_internals` takes for granted of the layers of Keras.

A test here that fails says that Keras has changed something private. The message names
the function of keras_internals to adapt.
"""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mp import keras_internals, layers

X = np.zeros((1, 3, 2), "float32")


def built(layer):
    layer(*[X] * (2 if isinstance(layer, ATTENTIONS) else 1))
    return layer


ATTENTIONS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def attentions():
    """A multi-head and a grouped-query attention of Keras, built."""
    return [
        built(keras.layers.MultiHeadAttention(2, 4, dropout=0.5)),
        built(keras.layers.GroupQueryAttention(4, 2, 1, dropout=0.5)),
    ]


def uses_flash_attention():
    for cls, arguments in zip(ATTENTIONS, [(2, 4), (4, 2, 1)], strict=True):
        for flash in (False, True):
            layer = cls(*arguments, flash_attention=flash)
            yield keras_internals.uses_flash_attention(layer), flash


def scores_equation():
    multi, grouped = map(keras_internals.scores_equation, attentions())
    # Of keys and queries in this order, and of queries and keys.
    yield np.einsum(multi, X[..., None], X[..., None] + 1).shape, (1, 2, 3, 3)
    yield np.einsum(grouped, X[..., None], X[..., None]).shape, (1, 2, 3, 3)


def outputs_equation():
    weights = np.zeros((1, 2, 3, 3))
    for layer in attentions():
        equation = keras_internals.outputs_equation(layer)
        yield np.einsum(equation, weights, X[..., None]).shape, (1, 3, 2, 1)


def scores_scale():
    yield keras_internals.scores_scale(keras.layers.MultiHeadAttention(2, 4)), 0.5


def grouped_query_scores_scale():
    layer = keras.layers.GroupQueryAttention(4, 2, 1)
    yield keras_internals.grouped_query_scores_scale(layer), 0.5


def drop_attention_weights():
    ones = np.ones((1, 2, 32, 32), "float32")
    for layer in attentions():
        dropped = keras_internals.drop_attention_weights(layer, ones, True)
        yield set(np.unique(dropped)), {0.0, 2.0}
        kept = keras_internals.drop_attention_weights(layer, ones, False)
        yield np.min(kept), 1.0


def attention_seeds():
    for layer in attentions():
        seeds = keras_internals.attention_seeds(layer)
        before = np.array(seeds.state)
        layer(X, X, training=True)
        yield np.array_equal(seeds.state, before), False


def attends_otherwise():
    base = keras.layers.Attention
    yield keras_internals.attends_otherwise(base, base), False
    yield keras_internals.attends_otherwise(keras.layers.AdditiveAttention, base), True
    for name in (
        "_validate_inputs",
        "_calculate_score_mask",
        "_calculate_scores",
        "_apply_scores",
    ):
        asked = []

        def method(self, *inputs, name=name, asked=asked, **options):
            asked.append(name)
            return getattr(base, name)(self, *inputs, **options)

        cls = type("Own", (base,), {name: method})
        cls()([X, X])
        yield (keras_internals.attends_otherwise(cls, base), bool(asked)), (True, True)


def takes_masks_otherwise():
    for layer in attentions():
        base = type(layer)
        yield keras_internals.takes_masks_otherwise(base, base), False
        for name in (
            "call",
            "_compute_attention_mask",
            "_compute_causal_mask",
            "_compute_attention",
        ):
            asked = []

            def method(self, *inputs, name=name, asked=asked, base=base, **options):
                asked.append(name)
                return getattr(base, name)(self, *inputs, **options)

            cls = type("Own", (base,), {name: method})
            with keras_internals.unlocked(layer):
                layer.__class__ = cls
            mask = np.ones((1, X.shape[1], X.shape[1]), bool)
            layer(X, X, attention_mask=mask, use_causal_mask=True)
            otherwise = keras_internals.takes_masks_otherwise(cls, base)
            yield (otherwise, bool(asked)), (True, True)


def causal_mask():
    mask = keras_internals.causal_mask(attentions()[0], X, X)
    yield np.array(mask).tolist(), [np.tri(3, dtype=bool).tolist()]


def returns_attention_scores():
    layer = keras.layers.GroupQueryAttention(4, 2, 1)
    for returned in (True, False):
        layer(X, X, return_attention_scores=returned)
        yield keras_internals.returns_attention_scores(layer), returned


def renorm_layers():
    if keras_internals.KERAS < (3, 14):
        return []
    options = {"renorm_clipping": {"rmax": 1.5}, "epsilon": 0.0}
    return [built(keras.layers.BatchNormalization(renorm=True, **options))]


def uses_renorm():
    layer = keras.layers.BatchNormalization()
    yield hasattr(layer, "renorm"), keras_internals.KERAS >= (3, 14)
    yield keras_internals.uses_renorm(layer), False
    for layer in renorm_layers():
        yield keras_internals.uses_renorm(layer), True


def renorm_correction():
    batch = tf.constant([0.5, 3.0]), tf.constant([4.0, 1.0])
    for layer in renorm_layers():
        # Against a moving mean of 0 and a moving standard deviation of 1.
        layer.renorm_mean.assign([0.0, 0.0])
        layer.renorm_stddev.assign([1.0, 1.0])
        r, d = keras_internals.renorm_correction(layer, *batch)
        yield r.numpy().tolist(), [1.5, 1.0]
        yield d.numpy().tolist(), [0.5, 3.0]


def attach_logits():
    # The softmax of 200 and 0 is 1 and 0 in FP32; from the logits the loss is 200.
    logits = tf.constant([[200.0, 0.0]])
    probabilities = tf.constant([[1.0, 0.0]])
    keras_internals.attach_logits(probabilities, logits)
    loss = keras.losses.categorical_crossentropy([[0.0, 1.0]], probabilities)
    yield loss.numpy().tolist(), [200.0]


def mask_of():
    outputs = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    yield keras_internals.mask_of(outputs).numpy().tolist(), [[False, True]]
    yield keras_internals.mask_of(tf.constant(0.0)), None


def in_scratch_graph():
    found = []

    def function(x):
        found.append(keras_internals.in_scratch_graph())
        return x

    class Calls(keras.layers.Layer):
        def call(self, x):
            return function(x)

    layer = Calls()
    layer(keras.Input((1,)))
    layer(tf.ones([1, 1]))
    tf.function(function)(tf.ones([1]))
    yield found, [True, False, False]


def attach_mask():
    y_pred = tf.constant([[1.0], [3.0]])
    keras_internals.attach_mask(y_pred, tf.constant([False, True]))
    loss = keras.losses.MeanAbsoluteError()(tf.zeros([2, 1]), y_pred)
    yield loss.numpy(), 3.0


def direct_sublayers():
    inner = keras.layers.Dense(1)
    wrapper = keras.layers.TimeDistributed(inner)
    model = keras.Sequential([wrapper])
    yield keras_internals.direct_sublayers(model), [wrapper]
    yield keras_internals.direct_sublayers(wrapper), [inner]


def receivers():
    inputs = keras.Input((1,))
    dense = keras.layers.Dense(1)
    model = keras.Model(inputs, [dense(inputs), inputs + 1.0])
    found = keras_internals.receivers(model.operations[0])
    yield found[0], dense
    yield [each.name.partition("_")[0] for each in found], [dense.name, "add"]
    inner = keras.Sequential([keras.layers.Dense(1)])
    keras.Sequential([keras.Input((1,)), inner])
    (given,) = (
        x for x in keras_internals.direct_sublayers(inner) if x not in inner.layers
    )
    yield keras_internals.receivers(given), inner.layers


def set_policy():
    policies = keras.dtype_policies.DTypePolicyMap("mixed_float16")
    one, other = (built(keras.layers.Dense(1, dtype=policies)) for _ in range(2))
    keras_internals.set_policy(one, keras.DTypePolicy("float32"))
    yield [one.compute_dtype, other.compute_dtype], ["float32", "float16"]
    yield len(policies), 0
    keras_internals.set_policy(one, policies)
    yield one.dtype_policy is policies, True


def set_input_dtype():
    model = keras.Sequential([keras.layers.Identity(dtype="mixed_float16")])
    x = np.full((1, 1), 1e5, "float32")
    yield model(x).dtype.name, "float16"  # built by this call
    layer = model.inputs[0]._keras_history.operation
    yield layer.dtype, "float16"
    model.layers[0].dtype_policy = "float32"
    yield float(model(x)[0, 0]), np.inf
    keras_internals.set_input_dtype(layer, "float32")
    yield float(model(x)[0, 0]), 1e5
    yield layer.get_config()["dtype"], "float32"


def own_variables():
    layer = built(keras.layers.BatchNormalization())
    layer.gamma.trainable = False
    expected = [
        (layer.gamma, True),
        (layer.beta, True),
        (layer.moving_mean, False),
        (layer.moving_variance, False),
    ]
    own = keras_internals.own_variables(layer)
    yield [(v.name, listed) for v, listed in own], [(v.name, t) for v, t in expected]


def replaced_bias():
    """A built layer whose bias was removed and added again, before its kernel."""
    layer = built(keras.layers.Dense(1))
    kernel, bias = layer.kernel, layer.bias
    with keras_internals.unlocked(layer):
        for variable in (kernel, bias):
            keras_internals.remove_variable(layer, variable)
        yield layer.weights, []
        for variable in (bias, kernel):
            keras_internals.add_variable(layer, variable)
    yield [w.name for w in layer.weights], ["bias", "kernel"]


def unlocked():
    yield from replaced_bias()
    layer = built(keras.layers.Dense(1))
    with keras_internals.unlocked(layer):
        pass
    with pytest.raises(ValueError, match="cannot add new elements of state"):
        layer.other = keras.Variable(0.0)
    yield True, True


def add_variable():
    yield from replaced_bias()


def remove_variable():
    yield from replaced_bias()


def autocasts():
    for autocast in (True, False):
        variable = keras.Variable(0.0, autocast=autocast)
        yield keras_internals.autocasts(variable), autocast


def replicas_scope():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        mirrored = keras.Variable(0.0)
    for variable, expected in (
        (mirrored, strategy),
        (keras.Variable(0.0), tf.distribute.get_strategy()),
    ):
        with keras_internals.replicas_scope(variable):
            yield tf.distribute.get_strategy(), expected


def synchronization_argument():
    variable = keras.Variable(0.0)
    has_argument = keras_internals.KERAS >= (3, 10)
    yield hasattr(variable, "synchronization"), has_argument
    argument = keras_internals.synchronization_argument(variable)
    yield set(argument), {"synchronization"} if has_argument else set()
    keras.Variable(0.0, **argument)


# For each function a generator of pairs: what it returns, and what keras_mp relies on.
CONTRACTS = (
    uses_flash_attention,
    scores_equation,
    outputs_equation,
    scores_scale,
    grouped_query_scores_scale,
    drop_attention_weights,
    attention_seeds,
    attends_otherwise,
    takes_masks_otherwise,
    causal_mask,
    returns_attention_scores,
    uses_renorm,
    renorm_correction,
    attach_logits,
    mask_of,
    in_scratch_graph,
    attach_mask,
    direct_sublayers,
    receivers,
    own_variables,
    unlocked,
    add_variable,
    remove_variable,
    autocasts,
    replicas_scope,
    synchronization_argument,
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.__name__)
def test_keras_keeps_what_the_function_relies_on(contract):
    try:
        pairs = list(contract())
    except AttributeError as error:
        pytest.fail(
            f"Keras changed: adapt keras_internals.{contract.__name__}: {error}"
        )
    for found, expected in pairs:
        assert found == expected, (
            f"Keras changed: adapt keras_internals.{contract.__name__}"
        )


# What the layer of each overridden hook is made and called with.
CALLS = {
    "Add": ((), ([X, X, X],)),
    "AdditiveAttention": ((), ([X, X],)),
    "Attention": ((), ([X, X],)),
    "Average": ((), ([X, X],)),
    "Dot": ((1,), ([X, X],)),
    "GroupQueryAttention": ((4, 2, 1), (X, X)),
    "MultiHeadAttention": ((2, 4), (X, X)),
}
HOOKS = [
    (name, hook)
    for name, hooks in keras_internals.OVERRIDDEN_HOOKS.items()
    for hook in hooks
]


@pytest.mark.parametrize(("name", "hook"), HOOKS)
def test_keras_calls_the_hook_that_a_layer_overrides(name, hook):
    base, ours = getattr(keras.layers, name), getattr(layers, name)
    message = f"Keras changed: `{name}.{hook}`, which keras_mp overrides"
    assert hasattr(base, hook), f"{message}, is gone"
    theirs = list(inspect.signature(getattr(base, hook)).parameters)
    known = list(inspect.signature(getattr(ours, hook)).parameters)
    shared = min(len(theirs), len(known))
    assert known[:shared] == theirs[:shared], f"{message}, takes other arguments"

    called = []

    def record(self, *args, **options):
        called.append(hook)
        return getattr(base, hook)(self, *args, **options)

    arguments, inputs = CALLS[name]
    type(name, (base,), {hook: record})(*arguments)(*inputs)
    assert called, f"{message}, is no longer called"


def test_the_hooks_are_those_that_the_layers_override():
    found = {}
    for name in set(layers.__all__) - {"Probe"}:  # of which Keras has none
        base, ours = getattr(keras.layers, name), getattr(layers, name)
        added = set(ours.__mro__) - set(base.__mro__)
        private = {
            attribute
            for cls in added
            for attribute in vars(cls)
            if attribute.startswith("_") and not attribute.startswith("__")
        }
        if hooks := {attribute for attribute in private if hasattr(base, attribute)}:
            found[name] = hooks
    expected = {n: set(hooks) for n, hooks in keras_internals.OVERRIDDEN_HOOKS.items()}
    assert found == expected
