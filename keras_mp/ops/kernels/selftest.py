"""The self-test of kernels that no table of ours has seen on this kind of GPU.

Before the first product, the first step of an optimizer, and the first reduction where
their kernels are on, such kernels run a small known problem on each GPU: once in a
process, in a fraction of a second. Kernels that err are not used, and plain TensorFlow
computes.
"""

import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

# The GPUs on which these kernels were measured, as TensorFlow names them: none yet.
MEASURED_GPUS: frozenset[str] = frozenset()
SWITCH = "KERAS_MP_SELFTEST"
# A function of the name of a device and other strings, to what is wrong there, or "".
Check = Callable[..., str]


def is_on() -> bool:
    """Tells whether kernels are checked: unless `KERAS_MP_SELFTEST` is 0."""
    chosen = os.environ.get(SWITCH) or "1"
    if chosen not in ("0", "1"):
        raise ValueError(
            f"The environment variable {SWITCH} must be 0, for no check of the kernels "
            f"at their first use on a GPU, or 1. Received: {SWITCH}={chosen!r}."
        )
    return chosen == "1"


def gpus() -> dict[str, str]:
    """Returns the kinds of the GPUs that TensorFlow sees, by the names of devices.

    If one GPU is several devices, they have the kind of the first GPU.
    """
    kinds = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    if len(kinds) != len(names):
        kinds = kinds[:1] * len(names)
    return dict(zip(names, kinds, strict=True))


@functools.cache
def passes(check: Check, *arguments: str) -> bool:
    """Tells whether a kernel may be used on the GPUs of this machine.

    Args:
        check: `Check`. It is called for each GPU of a kind that was not measured.
        *arguments: str, the other arguments of the check.

    Returns:
        bool: false if the check found something wrong; a warning names it.
    """
    if not is_on():
        return True
    for device, kind in gpus().items():
        if kind in MEASURED_GPUS:
            continue
        problem = apart(check, device, *arguments)
        if problem:
            warnings.warn(
                f"{problem} So the kernels of keras_mp for it are off in this process, "
                f"and plain TensorFlow computes. Received: device={device!r}, {kind}. "
                "Please report it: attach what `keras-mp gpu` writes to an issue. "
                f"{SWITCH}=0 skips this check, and uses the kernels.",
                stacklevel=2,
            )
            return False
    return True


def apart(check: Check, *arguments: str) -> str:
    """Calls a check in a thread of its own.

    A tape, a graph, a device and a strategy belong to a thread: the caller's, which may
    be in the middle of tracing a step, do not reach the check.
    """

    def run() -> str:
        try:
            return check(*arguments)
        except tf.errors.OpError as error:
            return f"A kernel fails: {error.message}."

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
