"""The kernels that check gradients, and bring masters and weights together, by PTX."""

import struct

import numpy as np
from cuda_ptx import kernels
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.update_arguments import (
    THREADS,
    TYPES,
    CheckEntry,
    Gradient,
    MasterPair,
    PairEntry,
    tensor_list,
)

SHARED_BYTES = THREADS * 8  # a double for each thread
NO_UNIFORMS = 0


def check_by_kernels(architecture, gradients, scale, kernel=None):
    """CheckKernel and SumKernel.

    Args:
        gradients: List of (array, type, offset): FP32 numbers or 16-bit ones as bits,
            the name of their type, and the elements by which they are misaligned.

    Returns:
        The unscaled gradients, the largest magnitude of each, the sum of squares.
    """
    memory = GlobalMemory()
    largest = memory.put(np.zeros(len(gradients), np.float32))
    entries, results = [], []
    for i, (array, element, offset) in enumerate(gradients):
        address = memory.put(array, offset * array.itemsize)
        results.append(memory.allocate(array.size * 4, offset * 4))
        gradient = Gradient(array.size, TYPES.index(element), address)
        entries.append(CheckEntry(gradient, results[-1], largest + 4 * i))
    listed, chunks = tensor_list(entries, [array.size for array, *_ in gradients])
    sums, total = memory.allocate(8 * chunks), memory.allocate(4)
    scale = memory.put(np.float32([scale]))
    kernel = kernel or kernel_by_name(architecture, "CheckKernel")
    execute(kernel, chunks, listed + struct.pack("<QQ", scale, sums), memory)
    arguments = struct.pack("<QqQ", sums, chunks, total)
    execute(kernel_by_name(architecture, "SumKernel"), 1, arguments, memory)
    return (
        [
            memory.get(at, np.float32, array.size)
            for at, (array, *_) in zip(results, gradients, strict=True)
        ],
        memory.get(largest, np.float32, len(gradients)),
        memory.get(total, np.float32, 1)[0],
    )


def pairs_by_kernel(architecture, name, pairs, rounding):
    """SyncMastersKernel or CastKernel.

    Args:
        pairs: List of (masters, weights as bits, type, uniforms or None, offset).
        rounding: The number of a Rounding.

    Returns:
        The masters and the weights of each pair.
    """
    memory, entries, places = GlobalMemory(), [], []
    for masters, weights, element, uniforms, offset in pairs:
        at = memory.put(masters, offset * 4), memory.put(weights, offset * 2)
        pair = MasterPair(masters.size, at[0], TYPES.index(element), at[1], 0)
        drawn = NO_UNIFORMS if uniforms is None else memory.put(uniforms, offset * 4)
        entries.append(PairEntry(pair, drawn))
        places.append(at)
    listed, chunks = tensor_list(entries, [masters.size for masters, *_ in pairs])
    kernel = kernel_by_name(architecture, name)
    execute(kernel, chunks, listed + struct.pack("<i4x", rounding), memory)
    return [
        (
            memory.get(m, np.float32, pair[0].size),
            memory.get(w, np.uint16, pair[0].size),
        )
        for (m, w), pair in zip(places, pairs, strict=True)
    ]


def kernel_by_name(architecture, name):
    """A kernel that is no template: it comes with those of every rule."""
    return kernels.kernel_of(kernels.update_source("Adam"), architecture, name)


def execute(kernel, blocks, arguments, memory):
    """Launches blocks of the update's kernels."""
    launch(
        kernel,
        (blocks, 1, 1),
        (THREADS, 1, 1),
        arguments,
        memory,
        shared_bytes=SHARED_BYTES,
    )
