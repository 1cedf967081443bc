"""The sums of tensor cores, and which lane of a warp holds which element.

NVIDIA documents no rounding. Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of
NVIDIA tensor cores" (PeerJ Computer Science, 2021), measured it: the sum so far and the
products of a group are aligned to the largest of them, cut off below its last bits,
added, and the result is cut off after 24 bits. The models have the size of a group and
the bits that are kept beyond 24.
"""

from dataclasses import dataclass

import numpy as np

WARP = 32
LANE = np.arange(WARP)[:, None]


@dataclass(frozen=True)
class Truncating:
    """Cuts off, towards zero: groups of `group` products, 24 + `extra` bits."""

    group: int
    extra: int

    def multiply_add(self, a, b, c):
        """a @ b + c for exact float64 [..., m, k] and [..., k, n], FP32 [..., m, n]."""
        total = c.astype(np.float64)
        for k in range(0, a.shape[-1], self.group):
            rows = a[..., :, None, k : k + self.group]
            columns = np.swapaxes(b[..., k : k + self.group, :], -1, -2)[
                ..., None, :, :
            ]
            terms = np.concatenate([total[..., None], rows * columns], axis=-1)
            _, exponent = np.frexp(np.abs(terms).max(-1))
            scale = np.ldexp(1.0, 24 + self.extra - exponent)
            cut = np.trunc(terms * scale[..., None]).sum(-1) / scale
            plain = terms.sum(-1)
            total = np.where(np.isfinite(plain), cut_to_float32(cut), plain)
        return total.astype(np.float32)


class Nearest:
    """Adds product after product in FP32, to nearest, as the emulator does."""

    @staticmethod
    def multiply_add(a, b, c):
        """a @ b + c, as of `Truncating`."""
        total = c.astype(np.float32)
        for k in range(a.shape[-1]):
            product = a[..., :, k : k + 1] * b[..., k : k + 1, :]  # exact
            total = (total + product).astype(np.float32)
        return total


NEAREST = Nearest()
V100 = Truncating(group=4, extra=0)
A100 = Truncating(group=8, extra=1)
H100 = Truncating(group=16, extra=2)
# Turing was not measured here: the coarsest of the models.
MODELS = {"sm_70": V100, "sm_75": V100, "sm_80": A100, "sm_90": H100}


def cut_to_float32(x):
    """float64 numbers with their FP32 rounding towards zero."""
    nearest = x.astype(np.float32)
    too_large = (np.abs(nearest) > np.abs(x)) & np.isfinite(nearest)
    return np.where(too_large, np.nextafter(nearest, np.float32(0)), nearest).astype(
        np.float64
    )


# PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": rows and
# columns of the elements of a lane, [32, elements].
_A, _B, _C = np.arange(8)[None], np.arange(4)[None], np.arange(4)[None]
MMA_A = LANE // 4 + _A // 2 % 2 * 8, LANE % 4 * 2 + _A % 2 + _A // 4 * 8
MMA_B = LANE % 4 * 2 + _B % 2 + _B // 2 * 8, LANE // 4 + _B * 0
MMA_C = LANE // 4 + _C // 2 * 8, LANE % 4 * 2 + _C % 2


class WmmaLayouts:
    """PTX does not say how wmma lays out a fragment: here at random, but always alike.

    Of A and B two lanes hold each element, as on Volta.
    """

    def __init__(self, seed=0):
        self._random = np.random.default_rng(seed)
        self._known = {}

    def elements(self, fragment):
        """Rows and columns of the elements of each lane of a named fragment."""
        if fragment not in self._known:
            copies = 1 if fragment == "c" else 2
            order = [self._random.permutation(256) for _ in range(copies)]
            self._known[fragment] = np.concatenate(order).reshape(WARP, -1)
        return np.divmod(self._known[fragment], 16)
