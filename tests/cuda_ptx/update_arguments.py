"""The arguments of the update kernels: keras_mp/update.h and cuda/update."""

import ctypes

import numpy as np

TYPES = ("Half", "Bfloat16", "Float")  # DataType
CHUNK = 4096  # kChunkSize
THREADS = 256  # kThreads
GROUP = 32  # kSlotGroup
MOST_SLOTS = 3
Pointer = ctypes.c_uint64

RULES = (
    "Sgd",
    "Momentum",
    "Nesterov",
    "Adam",
    "Amsgrad",
    "Nadam",
    "Adamax",
    "Lion",
    "Adagrad",
    "Adadelta",
    "Ftrl",
    "Rmsprop",
    "RmspropMomentum",
    "CenteredRmsprop",
    "CenteredRmspropMomentum",
)
# Of the slots of a rule: s and u have codes with and without a sign, f is FP32 only.
SLOTS = {
    "Sgd": "",
    "Momentum": "s",
    "Nesterov": "s",
    "Adam": "su",
    "Amsgrad": "fff",
    "Nadam": "su",
    "Adamax": "su",
    "Lion": "s",
    "Adagrad": "u",
    "Adadelta": "uu",
    "Ftrl": "ff",
    "Rmsprop": "u",
    "RmspropMomentum": "us",
    "CenteredRmsprop": "ff",
    "CenteredRmspropMomentum": "fff",
}


class Gradient(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int64), ("type", ctypes.c_int32), ("values", Pointer))


class MasterPair(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("master", Pointer),
        ("type", ctypes.c_int32),
        ("weight", Pointer),
        ("remainder", Pointer),
        ("short_remainder", Pointer),
    )


class Slot(ctypes.Structure):
    _fields_ = (
        ("values", Pointer),
        ("codes", Pointer),
        ("exponents", Pointer),
        ("pairs", Pointer),
    )


class CheckEntry(ctypes.Structure):
    _fields_ = (("gradient", Gradient), ("to", Pointer), ("largest", Pointer))


class PairEntry(ctypes.Structure):
    _fields_ = (("pair", MasterPair), ("uniforms", Pointer))


class UpdateEntry(ctypes.Structure):
    _fields_ = (
        ("gradient", Gradient),
        ("slots", Pointer * MOST_SLOTS),
        ("apply_weight_decay", ctypes.c_bool),
        ("pair", MasterPair),
        ("uniforms", Pointer),
    )


class Parameter(ctypes.Structure):
    _fields_ = (
        ("gradient", Gradient),
        ("powers", Pointer),
        ("slots", Slot * MOST_SLOTS),
        ("apply_weight_decay", ctypes.c_bool),
        ("pair", MasterPair),
        ("uniforms", Pointer),
    )


class Hyperparameters(ctypes.Structure):
    """UpdateHyperparameters."""

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in (
            "scale",
            "clip_value",
            "clip_factor",
            "weight_decay",
            "learning_rate",
            "momentum",
            "alpha",
            "beta_1",
            "one_minus_beta_1",
            "beta_2",
            "one_minus_beta_2",
            "epsilon",
            "m_factor",
            "m_divisor",
            "g_factor",
            "g_divisor",
            "v_divisor",
            "l1",
            "l2",
            "l2_shrinkage",
            "epsilon_2",
            "threshold",
            "noise_low",
            "noise_high",
        )
    )

    def as_fp32(self):
        """The numbers as NumPy has FP32, by name."""
        return {name: np.float32(getattr(self, name)) for name, _ in self._fields_}


def tensor_list(entries, sizes):
    """The bytes of a TensorList, and the number of its chunks."""
    kind = type(entries[0])
    most = 4000 // (ctypes.sizeof(kind) + 4)  # kMaxCount

    class TensorList(ctypes.Structure):
        _fields_ = (
            ("count", ctypes.c_int32),
            ("first_chunk", ctypes.c_int32 * most),
            ("entries", kind * most),
        )

    made, chunks = TensorList(count=len(entries)), 0
    for i, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        made.first_chunk[i], made.entries[i] = chunks, entry
        chunks += -(-size // CHUNK)
    return bytes(made), chunks
