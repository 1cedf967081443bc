"""The rules of CONTRIBUTING.md that a program can check."""

import ast
import functools
import graphlib
import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest

import keras_mp

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("keras_mp", "examples", "benchmarks", "tests")

# In each chain a module may import those of the ranks before its own; a package, such
# as layers, also its own modules. No chain imports from another; both begin with the
# same modules. `keras_mp` itself, the table of contents, imports anything.
CHAINS = (
    (
        ("dtypes", "random_bits", "optimizer.backend_tf"),
        ("arguments",),
        ("serialization",),
        (
            *(
                "loss_scale",
                "regularizers",
                "optimizer.backend",
                "optimizer.compression",
            ),
            *("optimizer.sharding", "optimizer.sharding_tf"),
        ),
        ("optimizer.slot_codes",),
        ("statistical_loss_scale", "optimizer.masters", "optimizer.reference"),
        ("optimizer.gradients", "optimizer.inner_optimizer"),
        ("optimizer.loss_scaler", "optimizer.rules"),
        ("optimizer.master_weights",),
        ("optimizer.arguments", "optimizer.step"),
        ("optimizer.compressed_step", "optimizer.properties"),
        ("optimizer.checkpoint",),
        ("optimizer",),
        ("checkpoints", "export", "watched_optimizers"),
        ("callbacks",),
    ),
    (
        ("dtypes", "random_bits"),
        ("ops.checks", "ops.gradients"),
        ("ops.kernels",),
        ("ops",),
        ("layers.float16_matmul_policy",),
        ("precision.model_index", "precision.modes"),
        ("precision.scope",),
        ("layers.precision", "layers.linear_logits"),
        ("layers.core",),
        (
            "layers.activations",
            "layers.attention",
            "layers.convolutional",
            "layers.merging",
            "layers.normalization",
            "layers.pooling",
        ),
        ("layers.rnn",),
        ("layers", "registration"),
        ("losses", "metrics"),
    ),
)
MAY_IMPORT = {
    f"keras_mp.{module}": [
        f"keras_mp.{name}" for name in (*sum(chain[:rank], ()), module)
    ]
    for chain in CHAINS
    for rank, modules in enumerate(chain)
    for module in modules
}
# The one bridge between the chains: the update step has a kernel.
for module in ("optimizer.gradients", "optimizer.master_weights", "optimizer.step"):
    MAY_IMPORT[f"keras_mp.{module}"].append("keras_mp.ops.kernels.update")
MAY_IMPORT["keras_mp.optimizer.backend_tf"].append("keras_mp.ops.kernels.dispatch")
# What finds and changes the precision of layers looks at models and optimizers alike,
# and neither knows of it. A plan reads what the diagnostics say.
for module in ("diagnostics", "precision"):
    MAY_IMPORT[f"keras_mp.{module}"] = [
        f"keras_mp.{name}"
        for name in (
            *("arguments", "diagnostics", "dtypes", "layers", "loss_scale", "ops"),
            *("optimizer", "precision", "regularizers", "watched_optimizers"),
        )
    ]
# Commands call what users call.
MAY_IMPORT["keras_mp.command_line"] = [
    f"keras_mp.{name}"
    for name in (
        *("command_line", "diagnostics", "layers", "ops", "optimizer", "precision"),
    )
]
MAY_IMPORT["keras_mp.__main__"] = []
# The error of a collapsed run says what diagnostics find.
MAY_IMPORT["keras_mp.callbacks"].append("keras_mp.diagnostics")
# What every module may use: the host behind it, and names of types.
INTERNALS, TYPING = "keras_mp.keras_internals", "keras_mp.typing"
MAY_IMPORT |= {INTERNALS: [], TYPING: []}
for imports in MAY_IMPORT.values():
    imports += [INTERNALS, TYPING]

HOSTS = ("keras", "tensorflow", "jax", "torch", "numpy")
ATTRIBUTE_FUNCTIONS = ("getattr", "hasattr", "setattr", "delattr")
# What no `tf.function` calls, so that AutoGraph does not rewrite it.
OUTSIDE_FUNCTIONS = (
    "keras_mp.checkpoints",
    "keras_mp.command_line",
    "keras_mp.precision",
)
# Public in spite of their names: methods of a NamedTuple.
PUBLIC = ("_asdict", "_replace")


@dataclass
class Source:
    """A parsed file: its path below the root, and the public names of keras_mp."""

    path: str
    tree: ast.Module
    public: tuple[str, ...]

    @property
    def module(self):
        """The dotted name: `keras_mp.ops` for keras_mp/ops/__init__.py."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def within(name, package):
    return name == package or name.startswith(package + ".")


def row_of(module):
    rows = [row for row in MAY_IMPORT if within(module, row)]
    return max(rows, key=len, default=None)


def imported(source, node):
    """Yields the absolute dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            is_package = source.path.endswith("/__init__.py")
            up = node.level - is_package
            parents = source.module.split(".")
            base = ".".join([*parents[: len(parents) - up], *base.split(".")])
            base = base.rstrip(".")
        yield from (f"{base}.{alias.name}" for alias in node.names)


def dotted(node):
    """The text of a chain such as `keras.src.ops`, or "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{base}.{node.attr}" if (base := dotted(node.value)) else ""
    return ""


def references(source):
    """Yields `(line, dotted name)` of every import and every attribute chain."""
    for node in ast.walk(source.tree):
        names = [*imported(source, node), dotted(node)]
        yield from ((node.lineno, name) for name in names if name)


def private_imports_of_the_host(source):
    for line, name in references(source):
        if any(within(name, p) for p in ("keras.src", "tensorflow.python")):
            yield line, f"{name} is private to its project"
    for node in ast.walk(source.tree):
        for name in imported(source, node):
            host, *parts = name.split(".")
            if host in HOSTS and any(map(is_private, parts)):
                yield node.lineno, f"{name} is private to its project"


def is_private(name):
    """Tells whether Python's convention, or TensorFlow's, makes a name private."""
    special = name.startswith("__") and name.endswith("__")
    return name == "__internal__" or (name.startswith("_") and not special)


def private_names_used(tree):
    """Yields `(line, name)` of `x._name`, `getattr(x, "_name")` and their like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and dotted(node.func) in ATTRIBUTE_FUNCTIONS:
            names = [a for a in node.args[1:2] if isinstance(a, ast.Constant)]
            yield from ((node.lineno, str(name.value)) for name in names)


def names_defined(tree):
    """Returns the names of functions and classes, and of what is assigned to.

    Of attributes, those of `self`: what is assigned to another object is its own.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            names.add(dotted(node).removeprefix("self."))
    return names


def modules_imported(source):
    """Yields the parsed modules of keras_mp that a source imports names from."""
    for node in ast.walk(source.tree):
        for name in imported(source, node):
            if not within(name, "keras_mp"):
                continue
            for module in (name, name.rpartition(".")[0]):
                file = ROOT / f"{module.replace('.', '/')}.py"
                if file.is_file():
                    yield parse(file)


def private_attributes_of_the_host(source):
    if source.path == "keras_mp/keras_internals.py":
        return
    if not source.path.startswith("keras_mp/"):
        return
    own = {*PUBLIC, *names_defined(source.tree)}
    for tree in modules_imported(source):
        own |= names_defined(tree)
    for line, name in private_names_used(source.tree):
        if is_private(name) and name not in own:
            yield line, f"{name} is not of keras_mp: ask {INTERNALS} for it"


def imports_against_the_layers(source):
    if not source.path.startswith("keras_mp/") or source.module == "keras_mp":
        return
    row = row_of(source.module)
    if row is None:
        yield 1, f"{source.module} has no place in CHAINS: give it one"
        return
    for node in ast.walk(source.tree):
        for name in imported(source, node):
            if not within(name, "keras_mp"):
                continue
            if not any(within(name, allowed) for allowed in MAY_IMPORT[row]):
                yield node.lineno, f"{source.module} may not import {name}"


def internals_in_examples(source):
    if not source.path.startswith(("examples/", "benchmarks/")):
        return
    for line, name in references(source):
        package, _, rest = name.partition(".")
        if package == "keras_mp" and rest and rest.split(".")[0] not in source.public:
            yield line, f"{name} is not a public name"


def tensorflow_at_the_top(source):
    if not source.path.startswith("keras_mp/") or within(source.module, "keras_mp.ops"):
        return
    pending = list(source.tree.body)
    for node in pending:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(within(name, "tensorflow") for name in imported(source, node)):
            yield node.lineno, "import tensorflow in the function that needs it"
        pending.extend(ast.iter_child_nodes(node))


def asserts_in_the_library(source):
    for node in ast.walk(source.tree):
        if source.path.startswith("keras_mp/") and isinstance(node, ast.Assert):
            yield node.lineno, "raise an error that names the fix instead of assert"


def globals_in_the_library(source):
    for node in ast.walk(source.tree):
        if source.path.startswith("keras_mp/") and isinstance(node, ast.Global):
            yield node.lineno, "keep state in an object instead of a global"


def bare_excepts(source):
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "name the exception"


def what_autograph_cannot_read(source):
    if not source.path.startswith("keras_mp/"):
        return
    if any(within(source.module, package) for package in OUTSIDE_FUNCTIONS):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.NamedExpr):
            yield node.lineno, "AutoGraph cannot read :=, and every loop warns"


RULES = (
    private_imports_of_the_host,
    private_attributes_of_the_host,
    imports_against_the_layers,
    internals_in_examples,
    tensorflow_at_the_top,
    asserts_in_the_library,
    globals_in_the_library,
    bare_excepts,
    what_autograph_cannot_read,
)


@pytest.mark.slow_except(
    "globals_in_the_library",
    "bare_excepts",
    "internals_in_examples",
    "imports_against_the_layers",
    "tensorflow_at_the_top",
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sources_keep_the_rule(rule):
    paths = [path for top in SOURCES for path in sorted((ROOT / top).rglob("*.py"))]
    paths.append(ROOT / "keras_mp_cli.py")
    broken = []
    for path in paths:
        tree = parse(path)
        name = path.relative_to(ROOT).as_posix()
        source = Source(name, tree, tuple(keras_mp.__all__))
        broken += [f"{name}:{line}: {message}" for line, message in rule(source)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "path", "code"),
    [
        (private_imports_of_the_host, "tests/x.py", "import keras.src"),
        (private_imports_of_the_host, "tests/x.py", "from keras import src"),
        (private_imports_of_the_host, "tests/x.py", "from keras.src.ops import a"),
        (private_imports_of_the_host, "tests/x.py", "import keras\nkeras.src.a.b()"),
        (private_imports_of_the_host, "tests/x.py", "from tensorflow import python"),
        (private_imports_of_the_host, "tests/x.py", "from jax._src import core"),
        (private_attributes_of_the_host, "keras_mp/a.py", "optimizer._var_key(1)"),
        (private_attributes_of_the_host, "keras_mp/a.py", "a.b._trainable_variables"),
        (private_attributes_of_the_host, "keras_mp/a.py", "optimizer._built = True"),
        (private_attributes_of_the_host, "keras_mp/a.py", "hasattr(layer, '_layers')"),
        (private_attributes_of_the_host, "keras_mp/a.py", "getattr(v, '_layout', 1)"),
        (
            private_attributes_of_the_host,
            "keras_mp/a.py",
            "class A(B):\n  def f(self):\n    self._track_variable(1)",
        ),
        (
            private_attributes_of_the_host,
            "keras_mp/a.py",
            "def f():\n  import tensorflow as tf\n  tf.__internal__.distribute",
        ),
        (imports_against_the_layers, "keras_mp/new.py", ""),
        (
            imports_against_the_layers,
            "keras_mp/optimizer/compression.py",
            "import keras_mp",
        ),
        (
            imports_against_the_layers,
            "keras_mp/optimizer/optimizer.py",
            "from .. import ops",
        ),
        (
            imports_against_the_layers,
            "keras_mp/optimizer/optimizer.py",
            "import keras_mp.ops",
        ),
        (
            imports_against_the_layers,
            "keras_mp/optimizer/optimizer.py",
            "def f():\n  from keras_mp.callbacks import a",
        ),
        (
            imports_against_the_layers,
            "keras_mp/layers/core/dense.py",
            "from ...optimizer import wrap",
        ),
        (
            imports_against_the_layers,
            "keras_mp/layers/__init__.py",
            "from .. import optimizer",
        ),
        (
            imports_against_the_layers,
            "keras_mp/ops/kernels/native.py",
            "from ..gemm import a",
        ),
        (internals_in_examples, "examples/x.py", "from keras_mp import _a"),
        (
            internals_in_examples,
            "examples/x.py",
            "from keras_mp.optimizer.optimizer import wrap",
        ),
        (
            internals_in_examples,
            "benchmarks/x.py",
            "import keras_mp.optimizer.optimizer",
        ),
        (
            internals_in_examples,
            "benchmarks/x.py",
            "keras_mp.optimizer.optimizer.wrap(1)",
        ),
        (tensorflow_at_the_top, "keras_mp/a.py", "import tensorflow as tf"),
        (tensorflow_at_the_top, "keras_mp/a.py", "from tensorflow import math"),
        (
            tensorflow_at_the_top,
            "keras_mp/a.py",
            "try:\n  import tensorflow\nexcept ImportError:\n  pass",
        ),
        (asserts_in_the_library, "keras_mp/a.py", "assert True"),
        (globals_in_the_library, "keras_mp/a.py", "def f():\n  global a\n  a = 1"),
        (bare_excepts, "tests/x.py", "try:\n  pass\nexcept:\n  pass"),
        (what_autograph_cannot_read, "keras_mp/optimizer/a.py", "(a := 1)"),
    ],
)
def test_rule_sees_what_breaks_it(rule, path, code):
    assert list(rule(Source(path, ast.parse(code), ("wrap",))))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("tests/x.py", "from keras import ops\nimport keras_mp.loss_scale\nassert 1"),
        ("keras_mp/__init__.py", "from keras_mp.callbacks import LossScaleCallback"),
        (
            "keras_mp/optimizer/optimizer.py",
            "from .loss_scaler import LossScaler",
        ),
        ("keras_mp/ops/gemm.py", "import tensorflow\nfrom .kernels import native"),
        ("keras_mp/layers/core/dense.py", "from keras_mp.ops.gemm import fp16_gemm"),
        ("keras_mp/callbacks.py", "def f():\n  import tensorflow"),
        ("keras_mp/optimizer/compression.py", "from keras_mp import keras_internals"),
        ("keras_mp/keras_internals.py", "def f(optimizer):\n  optimizer._var_key(1)"),
        (
            "keras_mp/export.py",
            "class A(B):\n  def f(self):\n    self._a = self.__dict__\n    self._a",
        ),
        ("keras_mp/export.py", "def f(state):\n  state._replace(a=1)._asdict()"),
        (
            "keras_mp/optimizer/optimizer.py",
            "from .loss_scaler import LossScaler\nLossScaler(1)._round",
        ),
        ("examples/x.py", "import keras_mp\nkeras_mp.wrap(1).scale_loss(2)"),
        ("examples/x.py", "from keras_mp import wrap"),
        ("keras_mp/checkpoints.py", "while chunk := f():\n  g(chunk)"),
    ],
)
def test_rules_pass_good_code(path, code):
    source = Source(path, ast.parse(code), ("wrap",))
    assert [found for rule in RULES for found in rule(source)] == []


def cycles(modules):
    """Returns modules that import each other, at the top or inside functions."""
    sources = [Source(path, tree, ()) for path, tree in modules.items()]
    known = {source.module for source in sources}
    graph = {}
    for source in sources:
        names = [n for node in ast.walk(source.tree) for n in imported(source, node)]
        found = {n if n in known else n.rpartition(".")[0] for n in names}
        graph[source.module] = (found & known) - {source.module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other():
    assert cycles(modules_of_the_package()) == []


def test_modules_that_import_each_other_are_seen():
    code = {
        "a.py": "import b",
        "b.py": "def f():\n  from a import g",
        "c.py": "import a",
    }
    found = cycles({path: ast.parse(text) for path, text in code.items()})
    assert set(found) == {"a", "b"}


def names_used(tree):
    """Yields what a module loads, imports, and names in texts, as `getattr` does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def names_to_use(tree):
    """Yields the functions, classes and constants of a module.

    Decorators register functions elsewhere; Python calls those with special names.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [] if node.decorator_list else [node.name]
        else:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if not name.startswith("__"))


def unused_names(modules):
    used = {name for tree in modules.values() for name in names_used(tree)}
    return [
        f"{path}: {name}"
        for path, tree in modules.items()
        for name in names_to_use(tree)
        if name not in used
    ]


def modules_of_the_package():
    return {
        path.relative_to(ROOT).as_posix(): parse(path)
        for path in sorted((ROOT / "keras_mp").rglob("*.py"))
    }


def test_the_package_uses_every_name_in_it():
    # The contract tests read that list.
    listed = ["keras_mp/keras_internals.py: OVERRIDDEN_HOOKS"]
    assert unused_names(modules_of_the_package()) == listed


def test_what_tests_alone_use_is_seen():
    code = "A = 1\nB: int = A\ndef f():\n  pass\n@g\ndef h():\n  pass"
    assert unused_names({"a.py": ast.parse(code)}) == ["a.py: B", "a.py: f"]


def test_public_names_are_sorted():
    assert list(keras_mp.__all__) == sorted(keras_mp.__all__)


def public_objects(module):
    """Yields `(name, object)` of what `__all__` lists, and of the modules in it."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from public_objects(value)
        else:
            yield f"{module.__name__}.{name}", value


@pytest.mark.parametrize(("name", "value"), list(public_objects(keras_mp)))
def test_public_name_has_an_example(name, value):
    docstring = inspect.cleandoc(value.__doc__ or "")
    _, example, code = docstring.partition("\nExample:\n")
    assert example and ">>> " in code, f"{name} needs an `Example:` that doctest runs"


def test_patterns_of_slow_tables_name_cases(patterns_without_a_case):
    """Or a table has lost its quick case, and nobody would see it."""
    assert patterns_without_a_case == []
