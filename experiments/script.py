"""What every experiment is: a frozen configuration, rows, a table, a figure, and how they stand to what is published.

`mfabric reproduce` and `python -m experiments.NAME` both go through `Script`. A mistake is one sentence and status 2.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

import mfabric_jax
from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.study._provenance import commit, provenance

Rows = Sequence[Mapping[str, Any]]
COMPLETE = "complete"  # in a configuration: nothing stopped the run


class Verdict(NamedTuple):
    """One published claim beside what came out.

    - `published`: in words, with its unit; None: the paper gives no number here.
    - `off`: how far outside of what is published, as a part of it (0: inside); None without a number.
    """

    claim: str
    found: str
    published: str | None = None
    off: float | None = None
    allowed: float = 0.0

    @property
    def word(self) -> str:
        """reproduced, or differs by how much; measured where there is nothing to compare with."""
        if self.off is None:
            return "measured"
        return "reproduced" if abs(self.off) <= self.allowed else f"differs by {self.off:+.0%}"


def against(
    claim: str,
    found: float | Sequence[float],
    low: float | None,
    high: float | None = None,
    *,
    form: str = ".2f",
    allowed: float = 0.0,
) -> Verdict:
    """The verdict on a number that should lie from `low` to `high`, up to `allowed` of them; of several the farthest.

    `low` None: up to `high`; `high` None: be `low`.
    """
    high = low if high is None else high
    if high is None:
        raise ValueError("against needs low, high or both")
    several = [float(one) for one in np.atleast_1d(np.asarray(found))]
    off = max((_off(one, low, high) for one in several), key=abs)
    published = f"up to {high:{form}}" if low is None else _said(low, high, form)
    return Verdict(claim, _said(min(several), max(several), form), published, off, allowed)


def _off(found: float, low: float | None, high: float) -> float:
    return found / low - 1 if low is not None and found < low else max(0.0, found / high - 1)


def _said(low: float, high: float, form: str) -> str:
    return " to ".join(dict.fromkeys((f"{low:{form}}", f"{high:{form}}")))


def spread(claim: str, found: Sequence[float], form: str = ".2f") -> Verdict:
    """A measured fact: from the least to the most."""
    return Verdict(claim, _said(min(found), max(found), form))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """An experiment.

    - `config`: a frozen dataclass with defaults, checked when it is made.
    - `run`: its rows; where it yields them, those that there are stay if it is stopped.
    - `verdicts`: of rows, a line for every claim.
    - `quick`: fields of `config` that make it a matter of a minute or two on two cores, the same code.
    - `more`: told behind the table; may write further files into the folder.
    - `resolved`: what fields stand for, such as the prices in a file; goes into the effective configuration.
    """

    name: str
    question: str
    config: type
    run: Callable[[Any], Iterable[dict[str, Any]]]
    table: Callable[[Rows], str]
    draw: Callable[[Rows, Path], Path]
    verdicts: Callable[[Rows], list[Verdict]]
    quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    more: Callable[[Any, Path], str] | None = None
    resolved: Callable[[Any], Mapping[str, Any]] = lambda config: {}

    def answer(self, config: Any, folder: str | Path) -> tuple[list[dict[str, Any]], str]:
        """Run it: `name`.csv with its configuration and `name`.png go into the folder; returns rows and text."""
        if self.dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        table, picture = self.files(folder)
        with style.look():  # what it needs, before a long run
            report.check_picture(picture)
        rows: list[dict[str, Any]] = []
        complete, effective = False, self.effective(config)
        try:
            rows.extend(self.run(config))
            self.draw(rows, picture)
            told = [self.table(rows), *([self.more(config, Path(folder))] if self.more else [])]
            complete = True
        finally:
            if rows:
                report.write_rows(rows, table, effective | {COMPLETE: complete})
        return rows, "\n\n".join(filter(None, told))

    def files(self, folder: str | Path) -> tuple[Path, Path]:
        """Where rows and picture go."""
        return Path(folder) / f"{self.name}.csv", Path(folder) / f"{self.name}.png"

    def asked(self, config: Any) -> dict[str, Any]:
        """What decides the rows: the configuration and the code."""
        return dataclasses.asdict(config) | dict(self.resolved(config)) | {"source": source(), "dtype": self.dtype}

    def effective(self, config: Any) -> dict[str, Any]:
        """That, and where the result comes from."""
        return self.asked(config) | provenance(self.dtype)

    def kept(self, config: Any, folder: str | Path) -> list[dict[str, Any]] | None:
        """The rows of this configuration and code that the folder has with their picture, whole; else None."""
        table, picture = self.files(folder)
        if not (table.is_file() and picture.is_file()):
            return None
        try:
            rows, stored = report.read_rows(table)
        except InputError:
            return None
        code = {"version": mfabric_jax.__version__, "commit": commit(), "jax": jax.__version__, COMPLETE: True}
        wanted = json.loads(json.dumps(self.asked(config) | code))
        return rows if all(name in stored and stored[name] == value for name, value in wanted.items()) else None

    def chosen(self, quick: bool = False, **given: Any) -> Any:
        """The configuration of the fields given; under `quick` those left at their defaults become quick ones."""
        fields = {field.name: field.default for field in dataclasses.fields(self.config)}
        changed = {name: value for name, value in given.items() if value != fields[name]}
        return self.config(**{**(self.quick if quick else {}), **changed})

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run it from the shell; returns the exit status."""
        try:
            asked = self._options(argv)
            fields = [field.name for field in dataclasses.fields(self.config)]
            config = self.chosen(asked.quick, **{name: getattr(asked, name) for name in fields})
            rows, told = self.answer(config, asked.out)
        except InputError as mistake:
            print(f"{self.name}: {mistake}", file=sys.stderr)
            return 2
        print(f"{told}\n\n{report.plain(verdict_rows(self.verdicts(rows)))}")
        return 0

    def _options(self, argv: Sequence[str] | None) -> Any:
        import tyro

        fields = [
            ("out", Annotated[str, tyro.conf.arg(help="Folder for the rows and the picture.")], "results"),
            ("quick", Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Minutes, not hours.")], False),
        ]
        unchecked = {"__post_init__": lambda self: None, "__doc__": self.question}  # checked as `config`
        bases = (self.config,)
        return tyro.cli(
            dataclasses.make_dataclass("Options", fields, bases=bases, frozen=True, namespace=unchecked),
            args=argv,
            prog=self.name,
        )


@functools.cache
def source() -> str:
    """A fingerprint of the package and the experiments: a commit does not tell changes that are not committed."""
    digest = hashlib.sha256()
    for folder in dict.fromkeys((Path(mfabric_jax.__file__).parent, Path(__file__).parent)):
        for file in sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def verdict_rows(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """For tables and files."""
    return [
        {"claim": one.claim, "found": one.found, "published": one.published or "no number", "verdict": one.word}
        for one in verdicts
    ]


def grouped(rows: Rows, *fields: str) -> dict[tuple, list[Mapping[str, Any]]]:
    """Rows by the values of fields, in their order."""
    found: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[field] for field in fields), []).append(row)
    return found
