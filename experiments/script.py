"""What every experiment is: a frozen configuration, rows, a table, a figure, and how they stand to what is published.

`mfabric reproduce` and `python -m experiments.NAME` both go through `Script`. A mistake is one sentence and status 2.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax

from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.study.provenance import provenance

Rows = Sequence[Mapping[str, Any]]


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


def against(claim: str, found: float, low: float, high: float | None = None, *, form: str = ".2f", allowed=0.0):
    """The verdict on a number that should lie from `low` to `high` (None: be `low`), up to `allowed` of them."""
    high = low if high is None else high
    off = (found / low - 1) if found < low else (found / high - 1) if found > high else 0.0
    said = f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"
    return Verdict(claim, f"{found:{form}}", said, off, allowed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """An experiment.

    - `config`: a frozen dataclass with defaults, checked when it is made.
    - `run`: its rows; where it yields them, those that there are stay if it is stopped.
    - `verdicts`: of rows, a line for every claim.
    - `quick`: fields of `config` that make it a matter of a minute or two on two cores, the same code.
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

    def answer(self, config: Any, folder: str | Path) -> list[dict[str, Any]]:
        """Run it: `name`.csv with its configuration and `name`.png go into the folder; returns the rows."""
        if self.dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        folder = Path(folder)
        report.check_folder(folder)
        rows: list[dict[str, Any]] = []
        try:
            rows.extend(self.run(config))
        finally:
            if rows:
                report.write_rows(rows, folder / f"{self.name}.csv", self.effective(config))
        self.draw(rows, folder / f"{self.name}.png")
        return rows

    def effective(self, config: Any) -> dict[str, Any]:
        """The configuration, and where the result comes from."""
        return dataclasses.asdict(config) | provenance(self.dtype)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run it from the shell; returns the exit status."""
        try:
            asked = self._options(argv)
            quick = self.quick if asked.quick else {}
            given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(self.config)}
            defaults = {field.name: field.default for field in dataclasses.fields(self.config)}
            given |= {name: value for name, value in quick.items() if given[name] == defaults[name]}
            rows = self.answer(self.config(**given), asked.out)
        except InputError as mistake:
            print(f"{self.name}: {mistake}", file=sys.stderr)
            return 2
        print(self.table(rows))
        print("\n" + report.plain(verdict_rows(self.verdicts(rows))))
        return 0

    def _options(self, argv: Sequence[str] | None) -> Any:
        import tyro

        fields = [
            ("out", Annotated[str, tyro.conf.arg(help="Folder for the rows and the picture.")], "results"),
            ("quick", Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Minutes, not hours.")], False),
        ]
        unchecked = {"__post_init__": lambda self: None, "__doc__": self.question}    # checked as `config`
        bases = (self.config,)
        return tyro.cli(
            dataclasses.make_dataclass("Options", fields, bases=bases, frozen=True, namespace=unchecked),
            args=argv, prog=self.name,
        )  # fmt: skip


def verdict_rows(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """For tables and files."""
    return [
        {"claim": one.claim, "found": one.found, "published": one.published or "no number", "verdict": one.word}
        for one in verdicts
    ]
