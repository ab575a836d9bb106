"""Which algorithm runs a collective, and in how many chunks: `all-reduce=ring*4,all-reduce:<65536=double-tree`.

An item is OP=ALGORITHM, with `:<BYTES` behind the collective for those of fewer bytes, and `*CHUNKS` behind the
algorithm. Collectives that are not named run as usual.
"""

import math
from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.tasks.collectives.registry import ALGORITHMS, USUAL_ALGORITHM
from mfabric_jax.tasks.graph import Op

BY_WORD = {op.name.lower().replace("_", "-"): op for op in Op}


class Choice(NamedTuple):
    """`algorithm` in `chunks`, for collectives `below` so many bytes."""

    below: float
    algorithm: str
    chunks: int


def choices_of(algorithms: str = "", chunks: int = 1) -> dict[Op, tuple[Choice, ...]]:
    """For each collective its choices, by ascending `below`; `chunks` for those that name none."""
    found: dict[Op, dict[float, Choice]] = {op: {} for op in Op}
    whole("chunks", chunks)
    for item in filter(None, (part.strip() for part in algorithms.split(","))):
        op, choice = _item(item, chunks)
        if choice.below in found[op]:
            raise InputError(f"algorithms must name each collective and size once, but {item!r} is the second of both.")
        found[op][choice.below] = choice
    for op, usual in USUAL_ALGORITHM.items():
        found[op].setdefault(math.inf, Choice(math.inf, usual, chunks))
    return {op: tuple(of[below] for below in sorted(of)) for op, of in found.items()}


def which_choice(choices: tuple[Choice, ...], bytes: np.ndarray) -> np.ndarray:
    """[C] which of the choices, for collectives of so many bytes [C]."""
    return np.searchsorted([choice.below for choice in choices], bytes, side="right")


def _item(item: str, chunks: int) -> tuple[Op, Choice]:
    what, equals, how = item.rpartition("=")
    word, colon, limit = what.partition(":")
    algorithm, star, pieces = how.partition("*")
    if not equals or (colon and not limit.startswith("<")):
        raise InputError(f"algorithms must be a list of OP=ALGORITHM or OP:<BYTES=ALGORITHM, got {item!r}.")
    op = BY_WORD[one_of("collective", word.strip(), BY_WORD)]
    able = [name for name, builds in ALGORITHMS.items() if op in builds]
    one_of(f"algorithm of {word.strip()}", algorithm.strip(), able)
    below = _whole(limit[1:], item) if colon else math.inf
    return op, Choice(below, algorithm.strip(), whole("chunks", _whole(pieces, item)) if star else chunks)


def _whole(text: str, item: str) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"{text!r} in {item!r} must be a whole number.")
    return int(text)
