"""Mistakes in PTX: one instruction removed or changed."""

import re

from cuda_ptx.faults import Fault

WRONG = "the result is wrong"


def mutate(ptx, pattern, number, replacement):
    """Replaces one match of the pattern."""
    match = list(re.finditer(pattern, ptx))[number]
    return ptx[: match.start()] + match.expand(replacement) + ptx[match.end() :]


def what_notices(is_right, mutant):
    """The message of the fault that a mutant has, or that its result is wrong."""
    try:
        assert not is_right(mutant), "the mutation was not noticed"
    except Fault as fault:
        return str(fault)
    return WRONG
