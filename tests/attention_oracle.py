"""The attention in float64, with dropout: results, gradients, how far FP32 errs."""

import numpy as np
import tensorflow as tf

SINGLE = 2.0**-24
# A rounding to the dtype, and the smallest one.
UNITS = {
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
    "float32": (SINGLE, 2.0**-150),
}
# Name: queries, keys, heads, heads of the keys, the shape of the mask, is it causal.
CASES = {
    "heads": (17, 17, 2, 2, None, False),
    "causal": (17, 30, 2, 2, None, True),
    "grouped": (7, 16, 6, 2, None, False),
    "multi-query": (1, 64, 4, 1, None, False),
    "padding": (16, 17, 2, 2, (2, 1, 1, 17), False),
    "mask-of-pairs": (111, 130, 2, 1, (111, 130), True),
    "mask-of-queries": (9, 5, 2, 2, (2, 2, 9, 1), False),
}


def draw(seed, *shape, dtype="float16"):
    """Normal numbers of the dtype, in float64."""
    x = np.random.default_rng(seed).normal(size=shape)
    return np.asarray(tf.cast(tf.cast(x, dtype), "float64"))


def problem(queries, keys, heads, key_heads, mask, is_causal, dtype, size=20):
    """Tensors and an upstream gradient; a mask without a row that hides all."""
    shapes = [(2, queries, heads, size), (2, keys, key_heads, size)]
    shapes += [(2, keys, key_heads, 12), (2, queries, heads, 12)]
    tensors = [draw(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    if mask is not None:
        mask = np.random.default_rng(4).uniform(size=mask) > 0.3
        mask[..., 0] |= mask.shape[-1] > 1
    return tensors, mask, is_causal


def scores_of(query, key, mask, is_causal):
    """Scores as [batch, heads, queries, keys], the sum of their sizes, what is seen."""
    group = query.shape[2] // key.shape[2]
    key = np.repeat(key, group, axis=2)
    products = [
        np.einsum("btnh,bcnh->bntc", q, k) / np.sqrt(query.shape[3])
        for q, k in ((query, key), (np.abs(query), np.abs(key)))
    ]
    sees = np.ones_like(products[0], bool)
    if is_causal:
        sees &= np.tri(*sees.shape[2:], dtype=bool)
    return *products, sees if mask is None else sees & mask


def expected(tensors, mask, is_causal, dtype, kept=1.0):
    """The result and the three gradients, and how far each may be off.

    A score errs by `size + 2` roundings of the sum of the sizes of its products, and so
    a probability by as much, twice, of itself, by the exponential's 2^-22, and by the
    sum's roundings. Gradients are computed from the rounded result, and bfloat16
    factors may be rounded. The two roundings of the dropout are among the 64.

    Args:
        tensors: query, key, value, upstream gradient.
        mask: bool array, or None.
        is_causal: bool.
        dtype: of the tensors.
        kept: what the dropout multiplies each weight by.
    """
    query, key, value, upstream = tensors
    group = query.shape[2] // key.shape[2]
    key, value = (np.repeat(x, group, axis=2) for x in (key, value))
    scores, sizes, sees = scores_of(query, key, mask, is_causal)
    low = np.where(sees, scores, -1e300)
    p = np.exp(low - low.max(-1, initial=-1e300, keepdims=True))
    p = p / np.maximum(p.sum(-1, keepdims=True), 1)
    has_key = sees.any(-1, keepdims=True)
    error = (query.shape[3] + 2) * SINGLE * sizes.max(-1, initial=0, keepdims=True)
    error = 4 * error + 2.0**-20 + (scores.shape[3] + 64) * SINGLE
    factor = UNITS["bfloat16"][0] if dtype == "bfloat16" else 0.0
    unit, smallest = UNITS[dtype]

    def rounded(exact, error):
        return exact, error + unit * (np.abs(exact) + error) + smallest

    def weighted(p, x):
        return np.einsum("bntc,bcnv->btnv", p, x)

    def summed(p, x):
        """Over the queries, and the heads that share one of the keys."""
        y = np.einsum("bntc,btnv->bcnv", p, x)
        sizes = (*y.shape[:2], y.shape[2] // group, group, y.shape[3])
        return y.reshape(sizes).sum(3)

    dropped = kept * p
    result = rounded(weighted(dropped, value), weighted(error * dropped, np.abs(value)))
    slope, slope_size = (
        kept * np.einsum("btnv,bcnv->bntc", g, v)
        for g, v in ((upstream, value), (np.abs(upstream), np.abs(value)))
    )
    mean = (p * slope).sum(-1, keepdims=True)
    mean_error = (np.abs(upstream) * result[1]).sum(-1).transpose(0, 2, 1)[..., None]
    g = np.where(has_key, p * (slope - mean), 0)
    g_error = p * (mean_error + 2 * error * (slope_size + np.abs(mean)))
    g_error += factor * (np.abs(g) + g_error)
    terms = (max(scores.shape[2:]) * group + 2) * SINGLE
    scale = query.shape[3] ** -0.5
    query_bound = scale * weighted(g_error + terms * np.abs(g), np.abs(key))
    key_bound = scale * summed(g_error + terms * np.abs(g), np.abs(query))
    value_bound = summed((error + factor + terms) * dropped, np.abs(upstream))
    return [
        result,
        rounded(scale * weighted(g, key), query_bound),
        rounded(scale * summed(g, query), key_bound),
        rounded(summed(dropped, upstream), value_bound),
    ]


def lowbias32(x):
    """The hash of uint32 numbers that decides about dropout."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_bits(seed, batch, heads, queries, keys):
    """The uint32 numbers of the weights of a call, whose seed is two numbers."""
    seed = np.array([seed], "int64").astype("uint32")
    positions = [np.arange(n, dtype="uint32") for n in (batch * heads, queries, keys)]
    call = lowbias32(lowbias32(seed[:, 0] + np.uint32(0x9E3779B9)) ^ seed[:, 1])
    head = lowbias32(call + positions[0]).reshape(batch, heads, 1, 1)
    first = lowbias32(head + positions[1][:, np.newaxis])
    return lowbias32(lowbias32(first + positions[2]) ^ lowbias32(first ^ head))


def kept_weights(rate, seed, *sizes):
    """What the dropout multiplies each weight by: 0, or 1 / (1 - rate)."""
    rate = float(np.float32(rate))
    return (random_bits(seed, *sizes) >= np.floor(2.0**32 * rate)) / (1 - rate)


def assert_within(found, wanted, dtype, name):
    parts = ("result", "grad_query", "grad_key", "grad_value")
    for y, (exact, bound), part in zip(found, wanted, parts, strict=True):
        assert y.dtype == dtype, (name, part)
        assert y.shape == exact.shape, (name, part)
        off = np.abs(np.asarray(tf.cast(y, "float64")) - exact)
        assert np.all(off <= bound), (name, part, np.max(off / bound))
