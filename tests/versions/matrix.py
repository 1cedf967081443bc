"""Tests keras_mp with the versions of TensorFlow, Keras and Python that users have.

    python tests/versions/matrix.py [--part] [TENSORFLOW/KERAS ...]
    python tests/versions/matrix.py next

For each pair it makes an environment in build/versions, with both and what the tests
need; installs the wheel of dist, which may replace neither; runs examples/quickstart.py
and a part of the tests; and writes a row of the table in docs/versions.md. The
interpreters are looked up on PATH. The ends of the range, and the oldest pair that has
the native library, get all tests; with `--part` a part as the others. `next` is for
the newest pre-releases: it installs the sources, and runs a part.
"""

import datetime
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
ENVIRONMENTS = ROOT / "build" / "versions"
TOOLS = (
    *("hypothesis>=6.100", "matplotlib>=3.8", "pytest>=9", "pytest-xdist>=3.8"),
    *("pyyaml>=6", "tensorboard"),
)
CONTRACTS = ("test_keras_internals.py", "layers/test_keras_internals.py")
# What is private in Keras, what the package is made of, and a little of each kind: a
# minute or two.
PART = (
    *CONTRACTS,
    *("test_package.py", "test_regularizers.py"),
    *("optimizer/test_rounding.py", "layers/core"),
)
# For the ends of the range: all but programs, pages, the project's own files, and the
# models of keras-hub, each release of which is for a few versions of Keras.
ALL = ("layers", "optimizer", "ops", "diagnostics", "precision", "test_*.py")


@dataclass(frozen=True)
class Pair:
    """Versions of TensorFlow and Keras, the Python to use, and the tests to run."""

    tensorflow: str
    keras: str
    python: str
    tests: tuple[str, ...]

    @property
    def name(self):
        if self.tensorflow == "next":
            return "next"
        return f"{self.tensorflow}/{self.keras}"

    @property
    def is_native(self):
        """Whether the native library is built for this TensorFlow: see setup.py."""
        return self.tensorflow == "next" or self.tensorflow >= "2.20"

    @property
    def keras_package(self):
        """The distribution that brings the module keras."""
        return "keras-nightly" if self.tensorflow == "next" else "keras"

    @property
    def requirements(self):
        if self.tensorflow == "next":
            return ["--pre", "tensorflow", self.keras_package]
        return [f"tensorflow=={self.tensorflow}.*", f"keras=={self.keras}.*"]


PAIRS = (
    Pair("2.21", "3.15", "3.13", ALL),
    Pair("2.21", "3.14", "3.12", PART),
    Pair("2.21", "3.13", "3.11", PART),
    Pair("2.21", "3.12", "3.10", PART),
    Pair("2.20", "3.13", "3.12", PART),
    Pair("2.20", "3.12", "3.10", ALL),
    Pair("2.19", "3.10", "3.12", PART),
    Pair("2.18", "3.8", "3.10", ALL),
)
NEXT = Pair("next", "next", "3.13", PART)
# What surrounds the tables in the page.
MARK, NEXT_MARK = "<!-- table -->\n", "<!-- next -->\n"
HEAD = (
    "| TensorFlow | Keras | Python | native library | quickstart | tests | support |",
    "|---|---|---|---|---|---|---|",
)


class Environment:
    """A virtual environment with a pair of versions."""

    def __init__(self, pair):
        self.pair = pair
        self.folder = ENVIRONMENTS / f"tf{pair.tensorflow}-keras{pair.keras}"
        self.python = self.folder / "bin" / "python"

    def run(self, *arguments, mode="auto", check=True):
        """Runs its Python where `import keras_mp` finds what was installed."""
        settings = {"KERAS_MP_OPS": mode, "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=self.folder,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with (self.folder / "log").open("a") as log:
            log.write(f"$ {' '.join(map(str, arguments))}\n{done.stdout}\n")
        if check and done.returncode:
            sys.exit(f"{done.stdout[-4000:]}\nThe log is {self.folder / 'log'}.")
        return done

    def create(self):
        """Makes it anew, unless it has these versions already."""
        if (self.folder / "made").exists():
            return
        interpreter = shutil.which(f"python{self.pair.python}")
        if interpreter is None:
            sys.exit(
                f"Each Python of the table must be on PATH. Received: no "
                f"python{self.pair.python}. Install it, or name other pairs."
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", self.folder], check=True)
        self.pip(*self.pair.requirements, *TOOLS)
        (self.folder / "made").touch()

    def pip(self, *arguments):
        options = ("--quiet", "--disable-pip-version-check")
        return self.run("-m", "pip", "install", *options, *arguments)

    def versions(self):
        """Returns those of TensorFlow and Keras that are installed."""
        code = (
            "from importlib.metadata import version as v;"
            f"print(v('tensorflow'), v('{self.pair.keras_package}'))"
        )
        return self.run("-c", code).stdout.split()

    def install(self):
        """Installs keras_mp, which may replace nothing."""
        before = self.versions()
        sources = ROOT if self.pair is NEXT else next((ROOT / "dist").glob("*.whl"))
        self.pip("--force-reinstall", "--no-deps", sources)
        if self.pair is not NEXT:  # pip does not know that a nightly Keras is Keras
            self.pip(sources)
        after = self.versions()
        if before != after:
            sys.exit(f"pip may replace nothing. Received: {after}, not {before}.")
        return after

    def route(self):
        """Returns what the ops run on: `native` or `reference`."""
        code = "import keras_mp; print(keras_mp.ops.build_info()['route'])"
        return self.run("-c", code).stdout.split()[-1]

    def quickstart(self):
        """Tells whether the example runs, and warns once where no library fits."""
        done = self.run(ROOT / "examples" / "quickstart.py", check=False)
        warnings = done.stdout.count("KERAS_MP_OPS=reference turns this warning off")
        expected = 0 if self.pair.is_native else 1
        trained = "with a master in float32" in done.stdout
        return done.returncode == 0 and trained and warnings == expected

    def test(self):
        """Runs the tests; returns how many passed, failed and were skipped."""
        tests = [
            path for test in self.pair.tests for path in (ROOT / "tests").glob(test)
        ]
        done = self.run(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore-glob=*hub*"),
            *("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal"),
            *("-m", "not slow and not xslow", *tests),
            mode="native" if self.pair.is_native else "reference",
            check=False,
        )
        print(done.stdout[-6000:])
        return counts_in(done.stdout), done.returncode == 0


def counts_in(output):
    """Returns how many tests passed, failed and so on, by pytest's last line.

    TensorFlow may write lines of its own after it.
    """
    *_, summary = re.findall(
        r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", output, re.M
    )
    return {kind: int(n) for n, kind in re.findall(r"(\d+) (\w+?)s?\b", summary)}


def measure(pair):
    """Returns the row of a pair."""
    environment = Environment(pair)
    environment.create()
    tensorflow, keras = environment.install()
    route = environment.route()
    builds = route == ("native" if pair.is_native else "reference")
    starts = environment.quickstart()
    counts, passes = environment.test()
    tests = {ALL: "all", PART: "part"}.get(pair.tests, "contracts")
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    support = "no"
    if builds and starts:
        tested = "tested" if pair is not NEXT else "pre-release, tested"
        support = f"{tested} {datetime.date.today()}" if passes else "builds"
    cells = (
        *(tensorflow, keras, pair.python),
        "yes" if route == "native" else "no",
        "runs" if starts else "fails",
        f"{tests}: {told}",
        support,
    )
    return f"| {' | '.join(cells)} |"


def write(rows):
    """Puts rows into the table of the page, each in the place of its pair."""
    before, table, after = PAGE.read_text().split(MARK)
    lines = {key(row): row for row in [*table.splitlines()[len(HEAD) :], *rows]}
    ordered = [lines[pair.name] for pair in PAIRS if pair.name in lines]
    PAGE.write_text(MARK.join([before, "\n".join([*HEAD, *ordered, ""]), after]))


def write_next(row):
    """Puts the row of the pre-releases into their table of the page."""
    before, _, after = PAGE.read_text().split(NEXT_MARK)
    PAGE.write_text(NEXT_MARK.join([before, "\n".join([*HEAD, row, ""]), after]))


def key(row):
    """Returns `2.21/3.15` for the row of TensorFlow 2.21.0 and Keras 3.15.1."""
    cells = [cell.strip() for cell in row.split("|")]
    return "/".join(".".join(cell.split(".")[:2]) for cell in cells[1:3])


def main(arguments):
    """Measures the pairs, by default all; returns whether one is not supported."""
    known = {pair.name: pair for pair in (*PAIRS, NEXT)}
    names = [name for name in arguments if name != "--part"]
    unknown = set(names) - {*known}
    if unknown:
        sys.exit(f"Pairs must be some of {[*known]}. Received: {sorted(unknown)}.")
    rows = []
    for pair in [known[name] for name in names] or PAIRS:
        if "--part" in arguments:
            pair = replace(pair, tests=PART)
        rows.append(measure(pair))
        if pair is NEXT:
            write_next(rows[-1])
        else:
            write(rows)
    print("\n".join([*HEAD, *rows]))
    return not all(" tested " in row for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
