"""A design space of cases, divided into parts with one file each."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case import CaseBlock, Cases
from mfabric_jax.case.grid import REFUSE, files_of
from mfabric_jax.case.paths import build, differences, flat
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.rows.points import BANDWIDTH, PORTS, check_case_block
from mfabric_jax.evaluate.rows.results import Results, record_of_cases
from mfabric_jax.evaluate.sharded import Estimate

ROWS_PER_FILE = 1024
LISTED = 100  # longest list that a folder shows in full
INDEX = "configuration"
DECISIVE = (PORTS, BANDWIDTH)  # the traced numbers that can make a case impossible


class CasePart(NamedTuple):
    """Cases of one block whose rows share a file."""

    number: int
    block: CaseBlock
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class CaseSpace:
    """Cases to sweep. If `sweep.impossible` is "leave-out", impossible cases are skipped and counted in `left_out`."""

    all_cases: Cases

    @property
    def dtype(self) -> str:
        return max(block.case.run.dtype for block in self.all_cases.blocks)

    @functools.cached_property
    def _possible(self) -> tuple[tuple[CaseBlock, ...], dict[str, int]]:
        """Blocks of the possible cases, and the number of impossible ones by reason."""
        if self.all_cases.rules.get("impossible", REFUSE) == REFUSE:
            return self.all_cases.blocks, {}
        left: dict[str, int] = {}
        possible = [block for original in self.all_cases.blocks if (block := _drop_impossible(original, left))]
        if not possible:
            why, rows = next(iter(left.items()))
            raise InputError(f"sweep.impossible is leave-out, but no case is possible; {rows} cases: {why}")
        return tuple(possible), left

    @property
    def left_out(self) -> dict[str, int]:
        """The number of impossible cases by reason."""
        return self._possible[1]

    @functools.cached_property
    def cases(self) -> Cases:
        return dataclasses.replace(self.all_cases, blocks=self._possible[0])

    @property
    def count(self) -> int:
        return len(self.cases)

    @functools.cached_property
    def parts(self) -> tuple[CasePart, ...]:
        return tuple(self._parts())

    def _parts(self) -> Iterator[CasePart]:
        size, first, number = self.all_cases.rules.get("rows_per_file") or ROWS_PER_FILE, 0, 0
        for block in self.cases.blocks:
            for start in range(0, len(block), size):
                some = slice(start, start + size)
                columns = {path: column[some] for path, column in block.columns.items()}
                part = CaseBlock(block.case, block.variant, columns)
                yield CasePart(number, part, np.arange(first + start, first + start + len(part)))
                number += 1
            first += len(block)

    def check(self) -> None:
        """Raise InputError if a case is impossible."""
        for block in self.cases.blocks:
            check_case_block(block)

    def identity(self) -> dict[str, Any]:
        """Return what identifies this sweep in its folder."""
        held = hashlib.sha256()
        for block in self.cases.blocks:
            held.update(json.dumps([block.variant, flat(block.case), block.columns], default=str).encode())
        variants = [{"name": variant.name} | variant.stated for variant in self.all_cases.variants]
        description = {
            "stated": _short(self._stated_values),
            "variants": variants,
            "random": dict(self.all_cases.random),
        }
        return description | {"rules": dict(self.all_cases.rules), "cases": held.hexdigest()}

    @property
    def _stated_values(self) -> dict[str, Any]:
        """The stated values, with lists; for cases made in Python, their differences from the defaults."""
        if self.all_cases.stated:
            return dict(self.all_cases.stated)
        distinct: dict[str, list[Any]] = {}
        for block in self.cases.blocks:
            for path, value in (differences(block.case) | dict(block.columns)).items():
                some = distinct.setdefault(path, [])
                some += [
                    item for item in dict.fromkeys(value if path in block.columns else [value]) if item not in some
                ]
        return {path: some[0] if len(some) == 1 else some for path, some in distinct.items()}

    def files(self) -> dict[str, Path]:
        return files_of(self.cases)

    def compute_part(
        self,
        part: CasePart,
        before: Callable[[Estimate], None] | None = None,
        solved: Callable[[int], None] | None = None,
    ) -> tuple[dict, dict]:
        """Compute a part: return the columns of its rows and the footer of its file."""
        some = dataclasses.replace(self.cases, blocks=(part.block,))
        footer = {"command": "sweep", "part": part.number} | record_of_cases(some)
        if len(part.rows) > LISTED:
            footer["resolved"] |= {path: f"{len(part.rows)} values" for path in part.block.columns}
        return {INDEX: part.rows} | Results(some).columns(), footer


def _short(stated: dict[str, Any]) -> dict[str, Any]:
    long = {path: f"{len(value)} values" for path, value in stated.items() if _longer(value)}
    return stated | long


def _longer(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > LISTED


def _drop_impossible(block: CaseBlock, left: dict[str, int]) -> CaseBlock | None:
    below = flat(block.case)
    tried = {path: block.columns[path] for path in DECISIVE if path in block.columns}
    rows = list(zip(*tried.values(), strict=True)) if tried else [()] * len(block)
    faults = {key: _fault(build(below | dict(zip(tried, key, strict=True)))) for key in dict.fromkeys(rows)}
    for key in rows:
        if why := faults[key]:
            left[why] = left.get(why, 0) + 1
    kept = [row for row, key in enumerate(rows) if not faults[key]]
    if not kept or len(kept) == len(block):
        return block if kept else None
    columns = {path: tuple(column[row] for row in kept) for path, column in block.columns.items()}
    first = build(below | {path: column[0] for path, column in columns.items()})
    return CaseBlock(first, block.variant, columns)


def _fault(case: Any) -> str | None:
    try:
        resolve(case)
    except Misfit as mistake:
        return str(mistake)
    return None
