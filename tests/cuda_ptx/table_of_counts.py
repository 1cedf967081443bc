"""Writes the table of docs/performance/cuda_kernels.md: what ptxas makes of kernels.

PYTHONPATH=tests python -m cuda_ptx.table_of_counts
"""

from cuda_ptx import kernels
from cuda_ptx.assembly import count
from cuda_ptx.compilers import assemble


def compile_product(architecture, shape, element, layout):
    """The machine code and the counts of a kernel."""
    source = kernels.product_source(shape, element, *kernels.LAYOUTS[layout])
    cubin, log = assemble(kernels.ptx_of(source, architecture), architecture)
    return cubin, count(cubin, log, architecture)


# Multiply-adds of FP16 that a multiprocessor does in a cycle, as NVIDIA publishes them,
# and the bytes of shared memory it moves.
TENSOR_RATE = {"sm_70": 512, "sm_75": 512, "sm_80": 1024, "sm_90": 2048}
SHARED_RATE = 128
SCHEDULERS = 4  # each issues an instruction in a cycle


def room(architecture, shape, instructions):
    """The share of the peak of tensor cores that a main loop can reach, at most.

    A step issues the instructions of all warps, reads their fragments from shared
    memory and writes a tile there. On Volta two lanes hold each element of a fragment.
    """
    warps = shape.threads // 32
    held = 2 if architecture == "sm_70" else 1
    fragments = held * warps * (shape.warp_m + shape.warp_n)
    moved = 2 * shape.k * (fragments + shape.m + shape.n)
    needed = shape.m * shape.n * shape.k / TENSOR_RATE[architecture]
    return min(
        1.0, needed / max(moved / SHARED_RATE, warps * instructions / SCHEDULERS)
    )


def print_table(counted):
    """Prints a row for each architecture and shape: from the least to the most.

    Args:
        counted: an iterable of architecture, name of the shape and `Counts`.
    """
    rows = {}
    for architecture, shape, counts in counted:
        rows.setdefault((architecture, shape), []).append(counts)
    columns = ("registers", "spilled_bytes", "products", "moves", "barriers")
    columns += ("instructions",)
    print("| architecture | kernel |", *(f"{c} |" for c in columns), "of the peak |")
    print("|---|---|" + "---|" * len(columns) + "---|")
    for (architecture, name), found in rows.items():
        cells = [between(getattr(counts, c) for counts in found) for c in columns]
        most = max(counts.instructions for counts in found)
        share = room(architecture, kernels.SHAPES[name], most)
        cells.append(f"{100 * share:.0f}%")
        print(f"| {architecture} | {name} |", " | ".join(cells), "|", flush=True)


def between(values):
    """The least and the largest number."""
    values = sorted(values)
    return " to ".join(dict.fromkeys(map(str, (values[0], values[-1]))))


def counts_of_ours():
    """Yields architecture, name of the shape and counts of every kernel."""
    for architecture, shape, *variant in kernels.products():
        _, counts = compile_product(architecture, shape, *variant)
        yield architecture, shape, counts


if __name__ == "__main__":
    print_table(counts_of_ours())
