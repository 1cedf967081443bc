"""Makes the tables of this machine: `make bench`.

Runs the benchmarks, or those that are named, one after the other, and writes what each
prints to `results/MACHINE/NAME.md`, where MACHINE is processor and instruction set. A
benchmark that fails leaves its older table as it is, and the others run.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from machine import directory, gpus, instruction_set, processor

HERE = Path(__file__).parent
SHARED = {"all", "machine", "own_models", "training_models", "variants"}
NAMES = sorted({path.stem for path in HERE.glob("*.py")} - SHARED)


def write_table(name, folder):
    """Runs a benchmark, shows what it prints, and tells whether it ended well."""
    command = [sys.executable, HERE / f"{name}.py"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode == 0:
        (folder / f"{name}.md").write_text("".join(lines))
    return process.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    names = parser.parse_args().names
    folder = HERE / "results" / directory(processor(), gpus(), instruction_set())
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        print(f"\n{folder.name}/{name}.md\n", flush=True)
        if not write_table(name, folder):
            failed.append(name)
    if failed:
        sys.exit(f"error: no new table of {', '.join(failed)}; see above.")


if __name__ == "__main__":
    main()
