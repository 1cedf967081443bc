"""Writes the table of docs/performance.md: what ptxas makes of each CUDA kernel.

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


def main():
    """Prints a row for each architecture and shape: from the least to the most."""
    rows = {}
    for architecture, shape, *variant in kernels.products():
        _, counts = compile_product(architecture, shape, *variant)
        rows.setdefault((architecture, shape), []).append(counts)
    columns = ("registers", "spilled_bytes", "products", "moves", "barriers")
    columns += ("instructions",)
    print("| architecture | kernel |", *(f"{c} |" for c in columns))
    print("|---|---|" + "---|" * len(columns))
    for (architecture, shape), found in rows.items():
        cells = []
        for column in columns:
            values = [getattr(counts, column) for counts in found]
            least, most = min(values), max(values)
            cells.append(str(most) if least == most else f"{least} to {most}")
        print(f"| {architecture} | {shape} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
