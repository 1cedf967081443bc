"""A step of an optimizer by the PTX of its kernels, beside update_oracle.py."""

import struct
from dataclasses import dataclass

import numpy as np
from cuda_ptx import kernels, update_oracle
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.products import element_bits, element_values
from cuda_ptx.update_arguments import (
    MOST_SLOTS,
    SLOTS,
    TYPES,
    Gradient,
    Hyperparameters,
    MasterPair,
    Parameter,
    Slot,
    UpdateEntry,
    tensor_list,
)
from cuda_ptx.update_checks import execute

SMALL = [0.0, -0.0, 2**-149, -1e-40, 2**-126, 3e-8, -6e-5]
LARGE = [65504, -65519, 65520, 1e6, -3e38, np.inf, -np.inf, np.nan]
ROUNDINGS = ("nearest", "stochastic")
ORDINARY = {
    "scale": 1024, "clip_factor": 1, "learning_rate": 0.1, "momentum": 0.9,
    "alpha": 0.03, "beta_1": 0.9, "one_minus_beta_1": 0.1, "beta_2": 0.999,
    "one_minus_beta_2": 0.001, "epsilon": 1e-7, "m_factor": 0.7, "m_divisor": 0.6,
    "g_factor": 0.3, "g_divisor": 0.4, "v_divisor": 0.01, "l1": 0.3, "l2": 0.2,
    "l2_shrinkage": 0.05, "noise_low": 40000, "noise_high": 9,
}  # fmt: skip
OPTIONS = {"scale": 100, "clip_value": 0.5, "clip_factor": 0.7, "weight_decay": 0.01}


@dataclass(frozen=True)
class Variable:
    """A variable: how it is held, as MasterPair and Slot of keras_mp/update.h have it.

    Its arrays begin `offset` elements beyond an aligned address.
    """

    size: int
    gradient: str = "Half"
    weight: str = "Half"
    form: str = "master, weight"
    coded: bool = False
    bits: int = 8  # of a code
    offset: int = 0
    decays: bool = False


class Step:
    """The arrays of some variables in the memory of a device, with random numbers."""

    def __init__(self, rule, variables, rounding="nearest", options=False):
        self.rule, self.variables, self.rounding = rule, variables, rounding
        self.is_compressed = any(v.coded or v.form[0] != "m" for v in variables)
        self._random = np.random.default_rng(0)
        values = ORDINARY | (OPTIONS if options else {})
        self._hyperparameters = Hyperparameters(**values)
        with np.errstate(over="ignore"):
            self.before = [self._arrays(variable) for variable in variables]

    @property
    def kernel_name(self):
        """A part of the name of the kernel that computes the step."""
        return kernels.COMPRESSED_UPDATE if self.is_compressed else kernels.UPDATE

    def mistakes(self, architecture, kernel=None, finite=True):
        """The arrays that are not what the oracle has, by variable and name."""
        kernel = kernel or kernels.kernel_of(
            kernels.update_source(self.rule), architecture, self.kernel_name
        )
        memory, addresses = GlobalMemory(), []
        for variable, arrays in zip(self.variables, self.before, strict=True):
            addresses.append(
                {
                    array: memory.put(values, variable.offset * values.itemsize)
                    for array, values in arrays.items()
                }
            )
        entries = [
            self._entry(v, a) for v, a in zip(self.variables, addresses, strict=True)
        ]
        listed, chunks = tensor_list(entries, [v.size for v in self.variables])
        rest = struct.pack(
            "<i4xQQ",
            ROUNDINGS.index(self.rounding),
            memory.put(np.frombuffer(bytes(self._hyperparameters), np.uint8)),
            memory.put(np.array([finite])),
        )
        execute(kernel, chunks, listed + rest, memory)
        expected = self.after() if finite else self.before
        return [
            (number, array)
            for number, arrays in enumerate(expected)
            for array, values in arrays.items()
            if not same(
                memory.get(addresses[number][array], values.dtype, values.size),
                values,
                self.variables[number].weight,
            )
        ]

    def after(self):
        """The arrays after the step."""
        u = self._hyperparameters.as_fp32()
        with np.errstate(all="ignore"):
            return [
                self._moved(u, *pair)
                for pair in zip(self.variables, self.before, strict=True)
            ]

    def _arrays(self, v):
        """Random arrays; of eight numbers one is special."""
        gradients = self._numbers(v.size, SMALL) * np.float32(300)
        arrays = {"gradient": gradients}
        if v.gradient != "Float":
            arrays["gradient"] = element_bits(gradients, v.gradient)
        masters = self._numbers(v.size, SMALL + LARGE)
        written = np.where(
            np.arange(v.size) % 3 == 0, self._numbers(v.size, []), masters
        )
        if v.form.startswith("master"):
            arrays["master"] = masters
        if "weight" in v.form:
            # Every third is not a rounding of its master.
            arrays["weight"] = element_bits(written, v.weight)
        if v.form == "weight, remainder":
            arrays["remainder"] = self._random.integers(
                -(2**15), 2**15, v.size, np.int16
            )
        if v.form == "weight, short remainder":
            arrays["short remainder"] = self._random.integers(
                -(2**7), 2**7, v.size, np.int8
            )
        if self.rounding == "stochastic" and v.form == "master, weight":
            arrays["uniforms"] = self._random.random(v.size, np.float32)
        for k, kind in enumerate(SLOTS[self.rule]):
            numbers = np.abs(self._numbers(v.size, SMALL))
            if self.rule.startswith("Centered") and k == 0:
                numbers += 30  # no variance is negative
            if kind == "s" or (self.rule == "Ftrl" and k == 1):
                numbers *= self._random.choice(np.float32([-1, 1]), v.size)
            if v.coded and kind != "f":
                random = self._random.integers(0, 2**32, v.size)
                arrays |= self._coded(v, k, numbers, random)
            else:
                arrays[f"slot {k}"] = numbers
        return arrays

    def _coded(self, v, k, numbers, random):
        """The arrays of slot k of a variable, which has these numbers."""
        kind = SLOTS[self.rule][k]
        codes, exponents = update_oracle.encode(numbers, kind, v.bits, random)
        exponents = {f"exponents {k}": exponents}
        if v.bits == 4:
            return {f"pairs {k}": update_oracle.pairs_of(codes), **exponents}
        return {f"codes {k}": codes, **exponents}

    def _slot(self, v, k, arrays):
        """The numbers of slot k of a variable."""
        if f"exponents {k}" not in arrays:
            return arrays[f"slot {k}"]
        if v.bits == 4:
            codes = update_oracle.codes_of(arrays[f"pairs {k}"], v.size)
        else:
            codes = arrays[f"codes {k}"]
        kind = SLOTS[self.rule][k]
        return update_oracle.decode(codes, arrays[f"exponents {k}"], kind, v.bits)

    def _numbers(self, size, special):
        numbers = self._random.standard_normal(size, np.float32)
        is_special = (self._random.random(size) < 0.125) & bool(special)
        return np.where(
            is_special, self._random.choice(np.float32(special or [0]), size), numbers
        )

    def _entry(self, v, at):
        gradient = Gradient(v.size, TYPES.index(v.gradient), at["gradient"])
        pair = MasterPair(
            v.size,
            at.get("master", 0),
            TYPES.index(v.weight),
            at.get("weight", 0),
            at.get("remainder", 0),
            at.get("short remainder", 0),
        )
        uniforms = at.get("uniforms", 0)
        kinds = ("slot", "codes", "exponents", "pairs")
        slots = [
            Slot(*(at.get(f"{kind} {k}", 0) for kind in kinds))
            for k in range(MOST_SLOTS)
        ]
        if self.is_compressed:
            no_powers = 0
            return Parameter(
                gradient, no_powers, tuple(slots), v.decays, pair, uniforms
            )
        values = tuple(slot.values for slot in slots)
        return UpdateEntry(gradient, values, v.decays, pair, uniforms)

    def _moved(self, u, v, arrays):
        oracle, after = update_oracle, dict(arrays)
        gradient = widened(arrays["gradient"], v.gradient)
        if v.form == "weight":
            master = widened(arrays["weight"], v.weight)
        elif v.form == "weight, remainder":
            master = oracle.join(arrays["weight"], arrays["remainder"], v.weight)
        elif v.form == "weight, short remainder":
            master = oracle.join_short(
                arrays["weight"], arrays["short remainder"], v.weight
            )
        elif v.form == "master":
            master = arrays["master"]
        else:
            master = oracle.synchronized(
                arrays["master"], arrays["weight"], v.weight, self.rounding
            )
        slots = [self._slot(v, k, arrays) for k in range(len(SLOTS[self.rule]))]
        master, slots = oracle.step(self.rule, u, gradient, master, slots, v.decays)
        for k, slot in enumerate(slots):
            if f"exponents {k}" in arrays:
                after |= self._coded(v, k, slot, oracle.random_bits(u, v.size, k))
            else:
                after[f"slot {k}"] = slot
        if v.form == "weight, remainder":
            after["weight"], after["remainder"] = oracle.split(master, v.weight)
        elif v.form == "weight, short remainder":
            random = oracle.random_bits(u, v.size, MOST_SLOTS)
            after["weight"], after["short remainder"] = oracle.split_short(
                master, v.weight, random
            )
        elif v.form == "weight":
            uniforms = oracle.uniforms_of(u, v.size)
            after["weight"] = oracle.cast(master, v.weight, uniforms)
        else:
            after["master"] = master
        if v.form == "master, weight":
            after["weight"] = oracle.cast(master, v.weight, arrays.get("uniforms"))
        return after


def widened(numbers, element):
    """FP32 numbers of an array of the type."""
    return numbers if element == "Float" else element_values(numbers, element)


def same(found, expected, element):
    """Whether arrays have the same bits, or NaN of any payload."""
    if found.dtype == np.uint16:
        found, expected = (element_values(x, element) for x in (found, expected))
    equal = found.view(np.uint8) == expected.view(np.uint8)
    equal = equal.reshape(found.size, -1).all(axis=1)
    if found.dtype.kind == "f":
        equal |= np.isnan(found) & np.isnan(expected)
    return bool(equal.all())
