"""Reads PTX: kernels with their parameters, registers, labels and instructions.

What it does not know is an error, so that nothing is executed that was not understood.
"""

import re
from dataclasses import dataclass, field

from cuda_ptx.number_types import size_of

ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{]*\{")
VARIABLE = re.compile(
    r"\.(?P<space>param|shared)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>\w+)\s+"
    r"(?:\.ptr[\s.\w]*\s)?(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?"
)
DYNAMIC_SHARED = re.compile(
    r"\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[\]"
)
REGISTERS = re.compile(r"(%?[\w$]+)(?:<(\d+)>)?")
SPACE = re.compile(r"\s*")
LABEL = re.compile(r"([\w$]+):(?!:)")
GUARD = re.compile(r"@(!?)(%[\w$]+)\s+(.*)")


class Unsupported(Exception):
    """PTX that the interpreter does not know."""


@dataclass(frozen=True)
class Instruction:
    """`@guard name.modifier.modifier operand, operand`."""

    text: str
    guard: str | None
    negated: bool
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass
class Kernel:
    """An entry of a module. Offsets of variables are bytes in their space."""

    name: str
    dynamic_shared: frozenset[str]
    parameters: dict[str, int] = field(default_factory=dict)
    parameter_bytes: int = 0
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)


def parse(ptx):
    """The kernels of a module, by name."""
    ptx = re.sub(r"/\*.*?\*/", " ", ptx, flags=re.DOTALL)
    ptx = re.sub(r"//[^\n]*", " ", ptx)
    dynamic_shared = frozenset(DYNAMIC_SHARED.findall(ptx))
    kernels = {}
    for match in ENTRY.finditer(ptx):
        kernel = Kernel(match[1], dynamic_shared)
        _read_parameters(kernel, match[2])
        _read_body(kernel, ptx, match.end())
        kernels[kernel.name] = kernel
    return kernels


def split_operands(text):
    """Splits at the commas outside of braces and brackets."""
    return tuple(
        part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)
    )


def vector(operand):
    """The elements of `{a, b}`, or the operand alone."""
    if operand.startswith("{"):
        return split_operands(operand[1:-1])
    return (operand,)


def _read_parameters(kernel, text):
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        offset, size = _place(declaration, kernel.parameter_bytes)
        kernel.parameters[VARIABLE.fullmatch(declaration)["name"]] = offset
        kernel.parameter_bytes = offset + size


def _place(declaration, end):
    """The offset and size of a variable behind those that end at `end`."""
    match = VARIABLE.fullmatch(declaration)
    if match is None:
        raise Unsupported(declaration)
    element = size_of(match["kind"])
    align = int(match["align"] or element)
    return -(-end // align) * align, element * int(match["count"] or 1)


def _read_body(kernel, ptx, at):
    """Reads statements up to the brace that closes the kernel.

    A brace at the beginning of a statement opens a scope, as inline assembly does. The
    scopes of a kernel share their registers: they follow one another.
    """
    depth = 1
    while depth > 0:
        at = SPACE.match(ptx, at).end()
        label = LABEL.match(ptx, at)
        if ptx[at] in "{}":
            depth += 1 if ptx[at] == "{" else -1
            at += 1
        elif label:
            kernel.labels[label[1]] = len(kernel.instructions)
            at = label.end()
        else:
            end = ptx.index(";", at)
            _read_statement(kernel, " ".join(ptx[at:end].split()))
            at = end + 1


def _read_statement(kernel, text):
    if not text or text.startswith((".pragma ", ".loc ")):
        return
    if text.startswith(".reg"):
        _, kind, names = text.split(" ", 2)
        _declare(kernel, kind.removeprefix("."), names)
    elif text.startswith(".shared"):
        offset, size = _place(text, kernel.shared_bytes)
        kernel.shared[VARIABLE.fullmatch(text)["name"]] = offset
        kernel.shared_bytes = offset + size
    elif text.startswith("."):
        raise Unsupported(text)
    else:
        kernel.instructions.append(parse_instruction(text))


def _declare(kernel, kind, names):
    for item in names.split(","):
        name, count = REGISTERS.fullmatch(item.strip()).groups()
        numbered = [f"{name}{i}" for i in range(int(count))] if count else [name]
        for register in numbered:
            if kernel.registers.setdefault(register, kind) != kind:
                raise Unsupported(f"two types of {register} in {kernel.name}")


def parse_instruction(text):
    """Parses one instruction, without its semicolon."""
    guard = GUARD.fullmatch(text)
    rest = guard[3] if guard else text
    opcode, _, operands = rest.partition(" ")
    name, *modifiers = opcode.split(".")
    return Instruction(
        text,
        guard[2] if guard else None,
        bool(guard and guard[1]),
        name,
        tuple(modifiers),
        split_operands(operands),
    )
