"""keras_mp/update.h on arrays: rounded FP32 operations, and codes in float64."""

import numpy as np
from cuda_ptx.products import element_bits, element_values
from cuda_ptx.update_arguments import GROUP, MOST_SLOTS, SLOTS

F32 = np.float32
LARGEST = {"Half": F32(65504), "Bfloat16": F32(2**128 - 2**120)}
# The least exponent whose ulp is a number of its own, and the bits of fraction.
GRIDS = {"Half": (-14, 10), "Bfloat16": (-119, 7)}
# The same of masters of 24 bits, and the largest.
MASTERS = {"Half": (-14, 18), "Bfloat16": (-110, 15)}
LARGEST_MASTERS = {"Half": 65504 + 127 / 8, "Bfloat16": float.fromhex("0x1.fefep127")}


def clip(x, limit):
    """NaN stays."""
    return np.where(x > limit, limit, np.where(x < -limit, -limit, x))


def ulp(x, element):
    least, bits = GRIDS[element]
    _, exponent = np.frexp(x)
    exponent = np.where(x == 0, least, exponent - 1)
    return np.ldexp(F32(1), np.maximum(exponent, least) - bits)


def cast(master, element, uniforms=None):
    """The bits of the weight of a master."""
    x = clip(master, LARGEST[element])
    if uniforms is not None:
        unit = ulp(x, element)
        places = x / unit
        below = np.floor(places)
        x = (below + (uniforms < places - below)) * unit
    return element_bits(x, element)


def synchronized(master, weight, element, rounding):
    """The master, or the weight where that is not a rounding of it."""
    value = element_values(weight, element)
    if rounding == "nearest":
        is_rounding = element_values(cast(master, element), element) == value
        is_rounding &= np.signbit(master) == np.signbit(value)
    else:
        x = clip(master, LARGEST[element])
        unit = ulp(x, element)
        is_rounding = (value / unit == np.floor(x / unit)) | (
            value / unit == np.ceil(x / unit)
        )
    return np.where(is_rounding, master, value)


# The least and the most that a remainder of a weight that is not fixed-point counts.
REMAINDERS = {"Half": (-4096, 4096), "Bfloat16": (-32768, 32767)}


def join(weight, remainder, element):
    """The master of a weight and a remainder."""
    w = element_values(weight, element)
    bounded = np.clip(remainder, *REMAINDERS[element]).astype(np.int32)
    moved = (w.view(np.int32) + bounded).view(F32)
    if element == "Half":
        fixed = (w + np.ldexp(remainder.astype(np.float64), -40)).astype(F32)
        moved = np.where(np.abs(w) <= 2**-14, fixed, moved)
    return np.where(np.isfinite(w) & (remainder != 0), moved, w)


def split(master, element):
    """The weight and the remainder of a master."""
    weight = cast(master, element)
    w = element_values(weight, element)
    rest = master.view(np.int32).astype(np.int64) - w.view(np.int32)
    rest = np.clip(rest, *REMAINDERS[element])
    if element == "Half":
        fixed = np.rint(np.ldexp(master.astype(np.float64) - w, 40))
        fixed = np.clip(fixed, -32768, 32767)
        rest = np.where(np.abs(w) <= 2**-14, fixed, rest)
    return weight, np.where(np.isfinite(w), rest, 0).astype(np.int16)


def short_units(weight, element):
    """How many units of a 16-bit remainder one of 8 bits has."""
    is_fixed = (element == "Bfloat16") | (
        np.abs(element_values(weight, element)) <= 2**-14
    )
    return np.where(is_fixed, 256, 32)


def join_short(weight, remainder, element):
    """The master of a weight and a remainder of 8 bits."""
    wide = remainder.astype(np.int32) * short_units(weight, element)
    return join(weight, wide, element)


def split_short(master, element, random):
    """The weight and the 8-bit remainder, rounded by 32 random bits each."""
    limit = LARGEST_MASTERS[element]
    x = clip(master.astype(np.float64), limit)
    unit = ulp64(x, *MASTERS[element])
    below = np.floor(x / unit)
    x = (below + (np.ldexp(random >> 8, -24) < x / unit - below)) * unit
    places = np.abs(x) / ulp64(x, *GRIDS[element])
    nearest = np.rint(places)
    is_half_way = places - np.floor(places) == 0.5
    nearest = np.where(is_half_way, np.floor(places) + random % 2, nearest)
    w = np.minimum(nearest * ulp64(x, *GRIDS[element]), LARGEST[element])
    w = np.copysign(w, x).astype(F32)
    weight = element_bits(w, element)
    bits = x.astype(F32).view(np.int32).astype(np.int64) - w.view(np.int32)
    is_fixed = (element == "Half") & (np.abs(w) <= 2**-14)
    rest = np.where(is_fixed, np.ldexp(x - w, 40), bits) / short_units(weight, element)
    rest = np.where(np.isfinite(w), np.clip(rest, -127, 127), 0)
    return weight, rest.astype(np.int8)


def ulp64(x, least, bits):
    """The unit in the last place of x, with bits of fraction."""
    _, exponent = np.frexp(x)
    exponent = np.where(x == 0, least, exponent - 1)
    return np.ldexp(1.0, np.maximum(exponent, least) - bits)


def random_bits(u, count, stream):
    """32 bits for each element, in the stream of a slot or, MOST_SLOTS, of weights."""
    step = int(u["noise_high"]) * 65536 + int(u["noise_low"]) + stream * 0x9E3779B9
    x = (np.arange(count) + step) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ x >> 16


def uniforms_of(u, count):
    """The numbers in [0, 1) that round weights without a master."""
    return np.ldexp((random_bits(u, count, MOST_SLOTS) >> 8).astype(F32), -24)


# Of codes of 8 and of 4 bits, with and without a sign: the exponent of c in
# keras_mp/update.h, f, the largest number, and what the code of 0 bits counts.
CODES = {
    ("s", 8): (-14, 3, 1.875, 0),
    ("u", 8): (-30, 3, 1.875, 0),
    ("s", 4): (-2, 1, 1.5, 0),
    ("u", 4): (-7, 1, 1.0, 1),
}


def group_exponents(x, most):
    """The exponent of each group of neighbouring numbers."""
    magnitudes = np.where(np.isfinite(x), np.abs(x.astype(np.float64)), np.inf)
    starts = np.arange(0, x.size, GROUP)
    largest = np.minimum(np.maximum.reduceat(magnitudes, starts), 2.0**127)
    fraction, exponent = np.frexp(largest)
    exponents = exponent + 126 + (fraction > most / 2)
    exponents = np.where(largest < 2.0**-126, 0, np.minimum(exponents, 253))
    return exponents.astype(np.uint8)


def decode(codes, exponents, kind, bits):
    """The numbers of codes of a kind, "s" or "u"."""
    least, f, _, first = CODES[kind, bits]
    sign = 2 ** (bits - 1)
    magnitude = (codes & (sign - 1) if kind == "s" else codes).astype(np.int64) + first
    power = np.maximum(magnitude // 2**f - 1, 0) + least - f
    scaled = np.ldexp(magnitude % 2**f + np.where(magnitude < 2**f, 0, 2.0**f), power)
    e = np.repeat(exponents.astype(int), GROUP)[: codes.size]
    x = np.where(e > 0, np.ldexp(scaled, e - 127), 0).astype(F32)
    return np.where((codes >= sign) & (kind == "s"), -x, x)


def encode(x, kind, bits, random):
    """The codes and exponents of numbers, rounded by 32 random bits each."""
    least, f, most, first = CODES[kind, bits]
    exponents = group_exponents(x, most)
    e = np.repeat(exponents.astype(int), GROUP)[: x.size]
    scaled = np.ldexp(np.abs(x.astype(np.float64)), 127 - e)
    t = np.where(scaled < most, scaled, most)
    is_small = t < 2.0**least
    power = np.where(is_small, least, np.frexp(t)[1] - 1)
    # The place of t on the grid of codes, in units of 2^(f - 23) codes.
    place = np.where(is_small, 0, (power - least) << 23) + np.rint(
        np.ldexp(t, 23 - power)
    ).astype(np.int64)
    codes = (place + (random >> (9 + f))) >> (23 - f)
    if kind == "u":
        codes = np.maximum(codes, x > 0)
    else:
        codes |= np.where((x < 0) & (codes > 0), 2 ** (bits - 1), 0)
    codes = np.maximum(codes - first, 0)
    return np.where(e > 0, codes, 0).astype(np.uint8), exponents


def pairs_of(codes):
    """Codes of 4 bits as bytes: the first 16 of a group in the low bits."""
    padded = np.pad(codes, (0, -codes.size % GROUP)).reshape(-1, 2, GROUP // 2)
    return (padded[:, 0] | padded[:, 1] << 4).reshape(-1)


def codes_of(pairs, size):
    """The codes of 4 bits in bytes."""
    halves = pairs.reshape(-1, 1, GROUP // 2) >> np.uint8([[0], [4]]) & 15
    return halves.reshape(-1)[:size]


def step(rule, u, gradient, master, slots, decays):
    """The new master and slots of FP32 arrays; `u` has the hyperparameters by name."""
    g, w = gradient / u["scale"], master
    if u["clip_value"] != 0:
        g = clip(g, u["clip_value"])
    g = g * u["clip_factor"]
    if decays:
        w = w - w * u["weight_decay"] * u["learning_rate"]
    new, *slots = MOVES[rule](u, g, w, *slots[: len(SLOTS[rule])])
    return new, slots


def sgd(u, g, w):
    return (w - g * u["learning_rate"],)


def momentum(u, g, w, m):
    m = m * u["momentum"] - u["learning_rate"] * g
    return w + m, m


def nesterov(u, g, w, m):
    rate = u["learning_rate"]
    m = m * u["momentum"] - rate * g
    return w + (m * u["momentum"] - rate * g), m


def moments(u, g, m, v):
    m = m + (g - m) * u["one_minus_beta_1"]
    return m, v + (g * g - v) * u["one_minus_beta_2"]


def adam(u, g, w, m, v):
    m, v = moments(u, g, m, v)
    return w - m * u["alpha"] / (np.sqrt(v) + u["epsilon"]), m, v


def amsgrad(u, g, w, m, v, most):
    m, v = moments(u, g, m, v)
    most = larger(most, v)
    return w - m * u["alpha"] / (np.sqrt(most) + u["epsilon"]), m, v, most


def nadam(u, g, w, m, v):
    m, v = moments(u, g, m, v)
    n = m * u["m_factor"] / u["m_divisor"] + g * u["g_factor"] / u["g_divisor"]
    root = np.sqrt(v / u["v_divisor"]) + u["epsilon"]
    return w - n * u["learning_rate"] / root, m, v


def adamax(u, g, w, m, most):
    m = m + (g - m) * u["one_minus_beta_1"]
    most = larger(u["beta_2"] * most, np.abs(g))
    divisor = u["m_divisor"] * (most + u["epsilon"])
    return w - u["learning_rate"] * m / divisor, m, most


def lion(u, g, w, m):
    direction = np.sign(m * u["beta_1"] + g * u["one_minus_beta_1"])
    m = m * u["beta_2"] + g * u["one_minus_beta_2"]
    return w - u["learning_rate"] * direction, m


def adagrad(u, g, w, v):
    v = v + g * g
    return w - u["learning_rate"] * g / np.sqrt(v + u["epsilon"]), v


def adadelta(u, g, w, v, moved):
    v = u["beta_2"] * v + u["one_minus_beta_2"] * (g * g)
    delta = np.sqrt(moved + u["epsilon"]) * g / np.sqrt(v + u["epsilon"])
    moved = u["beta_2"] * moved + u["one_minus_beta_2"] * (delta * delta)
    return w - u["learning_rate"] * delta, v, moved


def ftrl(u, g, w, n, z):
    rate, total = u["learning_rate"], n + g * g
    sigma = (np.sqrt(total) - np.sqrt(n)) / rate
    z = z + ((g + u["l2_shrinkage"] * w) - sigma * w)
    w = (clip(z, u["l1"]) - z) / (np.sqrt(total) / rate + u["l2"])
    return w, total, z


def rmsprop(centered, has_momentum):
    def move(u, g, w, v, *others):
        v = variance = u["beta_2"] * v + u["one_minus_beta_2"] * (g * g)
        slots = [v]
        if centered:
            mean = u["beta_2"] * others[0] + u["one_minus_beta_2"] * g
            variance = v - mean * mean
            slots.append(mean)
        moved = u["learning_rate"] * g / np.sqrt(variance + u["epsilon"])
        if has_momentum:
            moved = u["momentum"] * others[-1] + moved
            slots.append(moved)
        return w - moved, *slots

    return move


def larger(x, y):
    """The larger of x and y, or x where either is NaN."""
    return np.where(y > x, y, x)


MOVES = {
    "Sgd": sgd,
    "Momentum": momentum,
    "Nesterov": nesterov,
    "Adam": adam,
    "Amsgrad": amsgrad,
    "Nadam": nadam,
    "Adamax": adamax,
    "Lion": lion,
    "Adagrad": adagrad,
    "Adadelta": adadelta,
    "Ftrl": ftrl,
    "Rmsprop": rmsprop(centered=False, has_momentum=False),
    "RmspropMomentum": rmsprop(centered=False, has_momentum=True),
    "CenteredRmsprop": rmsprop(centered=True, has_momentum=False),
    "CenteredRmspropMomentum": rmsprop(centered=True, has_momentum=True),
}
