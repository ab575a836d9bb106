"""What every experiment is: a frozen configuration, rows, a table, a picture, and how they stand to what is published.

`mfabric reproduce` and `python -m experiments.NAME` both go through `Script`. A mistake is one sentence and status 2.
`check`, `cells` and `compared` are what configurations and loops share; `rows.py` makes tables, `pictures.py` pictures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mfabric_jax
from mfabric_jax import checks, fabric, report
from mfabric_jax.case import Case, Cases, cases, load
from mfabric_jax.case.layers import preset_layers
from mfabric_jax.checks import InputError
from mfabric_jax.commands import help, words
from mfabric_jax.evaluate import Problem, resolve, simulate
from mfabric_jax.evaluate.rows.points import EvaluatedBlock, Shared
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.evaluate.solving import solve, times_of
from mfabric_jax.fabric import Region
from mfabric_jax.report import style
from mfabric_jax.report.drawing.drawn import picture_writer
from mfabric_jax.report.drawing.paper import look
from mfabric_jax.report.rows import Kept, keeping
from mfabric_jax.support.origin import commit
from mfabric_jax.support.progress import bar

from .pictures import Row, Rows

Found = Iterable[Row]
PAPER = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "topoopt", "mfabric", "nvl72", "mfabric-cpo")
PRICED = tuple(name for name in fabric.NAMES if fabric.get(name).about.domains is None)
COMPARED = tuple(name for name in PAPER if name in PRICED)  # fabrics with a price that the paper compares
PRESETS = {  # what each states beyond the paper's text
    "paper": {},
    "released": preset_layers("released")[-1].stated,
    "today": preset_layers("as-0.1")[-1].stated,
}
FIRST: dict[str, dict[str, Any]] = {  # which circuits the first all-to-all of a forward block finds
    "block": {},
    "reuse": {"circuits.reconfigure": "reuse"},
    "random": {"circuits.predict.predictor": "random"},
    "predict": {"circuits.reconfigure": "predict"},
    "pays": {"circuits.reconfigure": "pays"},
}
COMPLETE = "complete"  # in a configuration: nothing stopped the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfEveryScript:
    """Options of all experiments."""

    out: str = "results"
    """Folder for the rows and the picture."""
    quick: bool = False
    """Minutes, not hours."""


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

    `low` None: up to `high`; `high` None: be `low`; both None: nothing is published.
    """
    high = low if high is None else high
    numbers = [float(number) for number in np.atleast_1d(np.asarray(found))]
    if high is None:
        return spread(claim, numbers, form)
    off = max((_off(number, low, high) for number in numbers), key=abs)
    return Verdict(claim, reach(min(numbers), max(numbers), form), reach(low, high, form), off, allowed)


def _off(found: float, low: float | None, high: float) -> float:
    return found / low - 1 if low is not None and found < low else max(0.0, found / high - 1)


def reach(low: float | None, high: float, form: str) -> str:
    """Numbers in words: 1 to 2, 2, up to 2."""
    return f"up to {high:{form}}" if low is None else " to ".join(dict.fromkeys((f"{low:{form}}", f"{high:{form}}")))


def spread(claim: str, found: Sequence[float], form: str = ".2f") -> Verdict:
    """A measured fact: from the least to the most."""
    return Verdict(claim, reach(min(found), max(found), form))


@dataclasses.dataclass(frozen=True)
class Script:
    """An experiment.

    - `config`: a frozen dataclass with defaults, checked when it is made.
    - `quick`: fields of `config` that make it a matter of a minute or two on two cores, the same code.
    - `run`: its rows.   - `table`: of rows, a text.   - `draw`: writes their picture to a path.
    - `verdicts`: of rows, a line for every claim; none where nothing is published.
    - `name`, `question`: by default the name of the file that defines `config`, and the first line of its docstring.

    Without `run`, `table`, `verdicts` and `draw`, they are the functions of these names in the file that defines
    `config`; a function `build` there makes the picture as a chart or a figure.
    """

    config: type
    quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _: dataclasses.KW_ONLY
    run: Callable[[Any], Found] = None  # pyright: ignore
    table: Callable[[Rows], str] = None  # pyright: ignore
    draw: Callable[[Rows, Path], Path] = None  # pyright: ignore
    verdicts: Callable[[Rows], list[Verdict]] = None  # pyright: ignore
    dtype: str = "float32"
    name: str = ""
    question: str = ""

    def __post_init__(self):
        file = vars(sys.modules[self.config.__module__])
        defaults = {name: file.get(name) for name in ("run", "table", "verdicts", "draw")}
        defaults["draw"] = defaults["draw"] or ("build" in file and picture_writer(file["build"]))
        defaults["verdicts"] = defaults["verdicts"] or (lambda rows: [])
        defaults["name"] = Path(inspect.getfile(self.config)).stem if not self.name else ""
        defaults["question"] = (file["__doc__"] or "").split("\n")[0]
        for field, default in defaults.items():
            object.__setattr__(self, field, getattr(self, field) or default)

    def answer(self, config: Any, folder: str | Path) -> tuple[list[Row], str]:
        """Run it: `name`.csv with its configuration and `name`.png go into the folder; returns rows and table.

        Rows of finished `cells` are on disk as they come; after an error or an interrupt the same run goes on behind
        them. Rows of a run that was stopped are written, too, and marked as not complete. `InputError` for a folder in
        which another configuration, or other code, began a run that did not end.
        """
        if self.dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        file, picture = self.files(folder)
        with look():  # what it needs, before a long run
            style.check_picture(picture)
        with keeping(file, self.asked(config) | provenance(self.dtype)) as kept:
            with running(kept) as pieces:
                for row in self.run(config):
                    pieces.rows.append(row)
            self.draw(kept.rows, picture)
            text = self.table(kept.rows)
        return kept.rows, text

    def files(self, folder: str | Path) -> tuple[Path, Path]:
        """Where rows and picture go."""
        return Path(folder) / f"{self.name}.csv", Path(folder) / f"{self.name}.png"

    def asked(self, config: Any) -> dict[str, Any]:
        """What decides the rows: the configuration and the code."""
        return dataclasses.asdict(config) | {"source": source(), "dtype": self.dtype}

    def kept(self, config: Any, folder: str | Path) -> list[Row] | None:
        """The rows of this configuration and code that the folder has with their picture, whole; else None."""
        file, picture = self.files(folder)
        if not (file.is_file() and picture.is_file()):
            return None
        try:
            rows, stored = report.read_rows(file)
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
            options = self._options(argv)
            fields = [field.name for field in dataclasses.fields(self.config)]
            config = self.chosen(options.quick, **{name: getattr(options, name) for name in fields})
            rows, text = self.answer(config, options.out)
        except InputError as mistake:
            print(f"{self.name}: {mistake}", file=sys.stderr)
            return 2
        verdicts = verdict_rows(self.verdicts(rows))
        print("\n\n".join([text, *([report.plain(verdicts)] if verdicts else [])]))
        return 0

    def start(self, module: str) -> None:
        """Run it if the module is the one that was started."""
        if module == "__main__":
            sys.exit(self.main())

    def _options(self, argv: Sequence[str] | None) -> Any:
        given = list(sys.argv[1:] if argv is None else argv)
        unchecked = {"__post_init__": lambda self: None, "__doc__": self.question}  # checked as `config`
        options = dataclasses.make_dataclass(
            "Options", [], bases=(self.config, OfEveryScript), frozen=True, namespace=unchecked
        )
        if {"-h", "--help"} & set(given):
            print(help.of_options(self.name, options))
            raise SystemExit(0)
        return words.parse(options, given, self.name)


@functools.cache
def source() -> str:
    """A fingerprint of the package and the experiments: a commit does not tell changes that are not committed."""
    digest = hashlib.sha256()
    for folder in dict.fromkeys((Path(mfabric_jax.__file__).parent, Path(__file__).parent)):
        for file in sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def verdict_rows(verdicts: Iterable[Verdict]) -> list[Row]:
    """For tables and files."""
    return [
        {"claim": line.claim, "found": line.found, "published": line.published or "no number", "verdict": line.word}
        for line in verdicts
    ]


# -- checks and loops


def check(
    config: Any,
    *,
    positive: str = "",
    not_negative: str = "",
    whole: Mapping[int, str] = {},
    known: Mapping[str, Iterable[str]] = {},
    cases: str = "",
) -> None:
    """Check fields, named in words, each value of a list; a list has at least one value and none twice.

    - `whole`: whole numbers, by the least that is allowed.   - `known`: names, by field.
    - `cases`: fields of whose values each combination makes a `config.setting`, which checks the rest.
    """
    for field, allowed in known.items():
        checks.names(field, getattr(config, field), allowed)
    for field in dataclasses.fields(config):
        if isinstance(values := getattr(config, field.name), tuple):
            checks.distinct(field.name, values)
    for least, fields in whole.items():
        for field in fields.split():
            values = getattr(config, field)
            for value in values if isinstance(values, tuple) else (values,):
                checks.whole(field, value, at_least=least)
    for fields, rule in ((positive, checks.positive), (not_negative, checks.not_negative)):
        for field in fields.split():
            rule(field, getattr(config, field))
    for setting in product(*(getattr(config, field) for field in cases.split())) if cases else ():
        config.setting(*setting)


class Pieces:
    """A run as pieces that are kept as they end: cells, and what comes before, between and behind them.

    `rows`: of the piece that has not ended.
    """

    def __init__(self, kept: Kept):
        self.kept, self.rows, self.number = kept, [], 0

    def end(self) -> None:
        """Keep the rows of a piece; the next one begins."""
        self.kept.add(self.rows, self.number)
        self.rows, self.number = [], self.number + 1

    def left(self, cells: Iterable[tuple]) -> Iterator[tuple]:
        """Cells that an earlier run did not finish."""
        for cell in cells:
            if self.rows:
                self.end()
            if self.number in self.kept.done:
                self.number += 1
                continue
            yield cell
            self.end()


RUNNING: ContextVar[Pieces | None] = ContextVar("RUNNING", default=None)


@contextlib.contextmanager
def running(kept: Kept) -> Iterator[Pieces]:
    """While the block runs, `cells` leaves out what is kept; rows of a piece that an error stops are shown."""
    pieces = Pieces(kept)
    before = RUNNING.set(pieces)
    try:
        yield pieces
        pieces.end()
    except BaseException:
        if pieces.rows:
            kept.show(pieces.rows, pieces.number)
        raise
    finally:
        RUNNING.reset(before)


def cells(config: Any, *axes: Iterable[Any]) -> Iterator[tuple]:
    """The cross product of the axes, with a bar of progress.

    What `run` yields for a cell must not depend on other cells: a run that goes on leaves out those that are kept.
    """
    name = Path(inspect.getfile(type(config))).stem
    every, pieces = list(product(*axes)), RUNNING.get()
    with bar(name, "case", len(every)) as shown:
        for cell in every if pieces is None else pieces.left(every):
            yield cell
            shown.update()


def compared(config: Any, *axes: Iterable[Any]) -> Iterator[tuple[tuple, list[Row]]]:
    """Each cell of the axes, and the rows of its cases, `config.setting(*cell)`."""
    for cell in cells(config, *axes):
        yield cell, simulate(config.setting(*cell)).rows()


def grid(changes: Mapping[str, Any]) -> Cases:
    """The paper's case with settings by path; a tuple is an axis, the first one changing slowest.

    `InputError` for a case that cannot be.
    """
    axes = {path: value for path, value in changes.items() if isinstance(value, tuple)}
    fixed = {path: value for path, value in changes.items() if path not in axes}
    found = cases(paper().with_(fixed), axes)
    for case in found:
        resolve(case)
    return found


@functools.cache
def paper() -> Case:
    """The text of arXiv 2501.03905."""
    case = load(preset="paper")
    assert isinstance(case, Case)
    return case


def of_gpu(name: str) -> dict[str, Any]:
    """Settings of another GPU than the paper's, with its own NVLink."""
    return {"gpu.name": name, "gpu.nvlink_gigabytes_per_s": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """What most configurations have, and their comparisons."""

    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    seed: int = 0  # Of the traffic.

    def case(self, model: str, fabrics: str | tuple[str, ...], changes: Mapping[str, Any] = {}) -> Cases:
        """One model at the bandwidth and with the seed of the configuration, and `changes` as `grid` takes them."""
        own = {"model.name": model, "network.fabric": fabrics, "run.seed": self.seed}
        return grid(own | dict(changes) | {"network.nic_gbps": self.nic_gbps})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports:
    """The NICs of a region's servers."""

    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    optical_degree: int = 6  # NICs of a server on the optical switch.
    electrical_nics: int = 2  # NICs of a server on the electrical fabric.

    def region(self, servers: int) -> Region:
        """So many servers."""
        numbers = {"nic_gbps": self.nic_gbps, "electrical_nics": self.electrical_nics}
        numbers = {name: jnp.asarray(number, jnp.result_type(float)) for name, number in numbers.items()}
        return Region(servers, optical_degree=jnp.asarray(self.optical_degree), **numbers)


class Simulated(NamedTuple):
    """A problem with its all-to-alls and its iterations."""

    problem: Problem
    exchanges: Any
    times: Any


def only(asked: Case | Cases, exchanges: Any = None) -> Simulated:
    """The only problem of cases at all their bandwidths, with these all-to-alls if there are any."""
    (points,) = simulate(asked).groups
    block = points.block
    gbps = block.columns.get("network.nic_gbps", (points.problem.bandwidths[0],))
    problem = dataclasses.replace(points.problem, bandwidths=tuple(gbps))
    solved = solve(problem) if exchanges is None else exchanges
    return Simulated(problem, solved, times_of(problem, solved))


class OfFabric(Shared):
    """All-to-alls of one fabric, taken to be the same for every job."""

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made first, inside servers or between them."""
        return super().get("inside" if key[0] == "inside" else "between", make)


def reusing(asked: Cases, solved: dict[str, OfFabric]) -> list[Row]:
    """The rows of cases; all-to-alls are kept in `solved` by fabric, and those that are there are not solved."""
    rows = []
    for points in simulate(asked).groups:
        shared = solved.setdefault(points.on.name, OfFabric())
        rows += EvaluatedBlock(points.block, shared=shared).rows()
    return rows


def over_tree(here: Row, tree: Row) -> Row:
    """Seconds on mFabric and on the fat-tree, their ratio, and that of the performance per dollar."""
    seconds = {"fat_tree_s": tree["iteration_s"], "mfabric_s": here["iteration_s"]}
    ratios = {"over_fat_tree": here["iteration_s"] / tree["iteration_s"]}
    return seconds | ratios | {"per_dollar": here["perf_per_dollar"] / tree["perf_per_dollar"]}
