"""Makes the tables of this machine: `make bench`.

Runs the benchmarks, or those that are named, one after the other, the most important
first, and writes what each prints to `results/MACHINE/NAME.md`, where MACHINE is
processor and instruction set. The page of the machine in docs/performance shows it.
After an hour, or `--minutes`, it stops and names what it left out. A benchmark that is
stopped or fails leaves its older table as it is.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from machine import directory, gpus, instruction_set, processor

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "performance"
SHARED = {
    "all",
    "gpt2_in_pytorch",
    "machine",
    "own_models",
    "training_models",
    "variants",
}
FIRST = (
    "training_step",
    "update_step",
    "optimizer_state",
    "linear_cross_entropy",
    "gemm",
    "layers",
    "attention",
)
OTHERS = {path.stem for path in HERE.glob("*.py")} - SHARED - {*FIRST}
NAMES = [*FIRST, *sorted(OTHERS)]


# These compare with PyTorch.
WITH_TORCH = {"training_step", "linear_cross_entropy"}


def write_table(name, folder, seconds, python=None):
    """Runs a benchmark and shows what it prints, `python` being one with PyTorch.

    Returns:
        int, its exit status, which is -SIGTERM after so many seconds.
    """
    command = [sys.executable, HERE / f"{name}.py"]
    if python and name in WITH_TORCH:
        command += ["--torch", python]
    lines = []
    # A session of its own, so that the processes it starts can be ended with it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGTERM))
        timer.start()
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except BaseException:  # Ctrl-C, or a closed pipe
            os.killpg(process.pid, signal.SIGTERM)
            raise
        finally:
            timer.cancel()
    if process.returncode == 0:
        table = folder / f"{name}.md"
        table.write_text("".join(lines))
        show_on_page(table)
    return process.returncode


def show_on_page(table):
    """Adds a table to the page of its machine, and makes the page if there is none."""
    page = PAGES / f"{table.parent.name}.md"
    if page.exists():
        text = page.read_text()
    else:
        text = f"# {', '.join([processor(), *gpus(), instruction_set()])}\n"
        print(f"New page {page}: name it in mkdocs.yml and docs/performance.md")
    line = f'--8<-- "{table.relative_to(HERE.parent)}"'
    if line not in text:
        title = table.stem.replace("_", " ").capitalize()
        mark = table.stem.replace("_", "-")
        command = f"`python benchmarks/{table.stem}.py`"
        text += f"\n## {title} {{ #{mark} }}\n\n{command}\n\n{line}\n"
        page.write_text(text)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--minutes", type=float, default=60.0, help="default 60")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch")
    options = parser.parse_args(argv)
    folder = HERE / "results" / directory(processor(), gpus(), instruction_set())
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    failed, left_out = [], []
    for name in options.names:
        seconds = end - time.monotonic()
        if seconds <= 0:
            left_out.append(name)
            continue
        print(f"\n{folder.name}/{name}.md\n", flush=True)
        start = time.monotonic()
        status = write_table(name, folder, seconds, options.torch)
        print(f"\n{name}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
        if status == -signal.SIGTERM:
            left_out.append(name)
        elif status:
            failed.append(name)
    if left_out:
        print(
            f"\n{options.minutes:g} minutes are over: no new table of "
            f'{", ".join(left_out)}. For them: make bench ARGS="{" ".join(left_out)}"'
        )
    if failed:
        sys.exit(f"error: no new table of {', '.join(failed)}; see above.")


if __name__ == "__main__":
    main()
