"""Trains the same model in several precisions and compares them.

    python compare.py
    python compare.py --settings all --data fra-eng --out build/fra-eng

Every setting is a run of train.py in its own process, so that peak memory is its own.
Flags that are not listed here are handed on to train.py.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import report

TRAIN = Path(__file__).parent / "train.py"

SETTINGS = {
    "fp32": ["--precision", "fp32"],
    "fp32 seed 1": ["--precision", "fp32", "--seed", "1"],
    "fp32 seed 2": ["--precision", "fp32", "--seed", "2"],
    "mixed": ["--precision", "mixed"],
    "mixed, scale 128": ["--precision", "mixed", "--loss-scale", "128"],
    "mixed, no scaling": ["--precision", "mixed-no-scaling"],
    "fp16, no masters": ["--precision", "fp16-no-master"],
}
DEMO = ["fp32", "mixed", "fp16, no masters"]


def run(name: str, folder: Path, flags: list[str]) -> None:
    """Trains one setting in its own process."""
    command = [sys.executable, str(TRAIN), *SETTINGS[name], *flags]
    command += ["--out", str(folder)]
    print("\n$ python", " ".join(command[1:]), flush=True)
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", choices=["demo", "all"], default="demo")
    parser.add_argument("--out", type=Path, default=Path("build/nmt"))
    parser.add_argument("--jobs", type=int, default=1, help="settings at a time")
    parser.add_argument(
        "--keep", action="store_true", help="train only settings without a result"
    )
    args, flags = parser.parse_known_args()
    start = time.perf_counter()
    names = DEMO if args.settings == "demo" else list(SETTINGS)
    folders = {n: args.out / n.replace(", ", "-").replace(" ", "-") for n in names}
    files = {name: folder / "result.json" for name, folder in folders.items()}
    todo = [n for n in names if not (args.keep and files[n].is_file())]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda name: run(name, folders[name], flags), todo))

    results = {name: json.loads(file.read_text()) for name, file in files.items()}
    picture = args.out / "perplexity.png"
    report.curves(results, picture)
    print("\n" + report.translations(results))
    print(report.table(results))
    print(f"\nPerplexity curves: {picture.resolve()}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
