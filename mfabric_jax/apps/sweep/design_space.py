"""Design spaces of all-to-alls or replays, read from a file and checked before any computation."""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.sweep.axes import axis_values, check_value, columns
from mfabric_jax.apps.sweep.case_space import INDEX, LISTED
from mfabric_jax.case.grid import Setting
from mfabric_jax.case.own_code import read_settings
from mfabric_jax.case.paths import file_settings
from mfabric_jax.case.policies import file_of
from mfabric_jax.checks import InputError, in_file, one_of, whole
from mfabric_jax.evaluate.problem import DTYPES
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.support.parts import CONFIG

KINDS = {  # module below `apps`, class
    "all-to-all": ("sweep.all_to_alls", "AllToAlls"),
    "replay": ("graphs.replay.replays", "Replays"),
}
TABLES = ("fixed", "grid", "list", "random")
OF_FILES = (
    "policy",
    "trace",
    "workload",
    "communicators",
    "weights",
    "graph",
    "ranks_on",
)  # in addition to the files of a case


class CodeGroup(NamedTuple):
    """Configurations that run in one program: their shared settings (`code`), and their numbers (`rows` [N])."""

    code: dict[str, Any]
    rows: np.ndarray


class SweepPart(NamedTuple):
    """Configurations of a group that share one file of rows."""

    number: int
    group: CodeGroup
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A design space of all-to-alls or replays. Design spaces of whole iterations are in `case_space`.

    - `evaluate`: "all-to-all" of a region, or "replay" of a task graph with settings of `Replay` and of a case.
    - `fixed`: settings of all configurations. `grid`: lists whose every combination is a configuration. `list`: lists
      that are read side by side.
    - `random`: ranges (`low`, `high`, `scale` linear or log, `whole`) or choices (`of`), drawn `draws` times.
    - `rows_per_shard`: rows per file; None: 8,192 for all-to-alls.
    """

    evaluate: str = "all-to-all"
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    list: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    random: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    draws: int = 1
    draw_seed: int = 0
    rows_per_shard: int | None = None
    dtype: str = "float32"

    def __post_init__(self):
        one_of("evaluate", self.evaluate, KINDS)
        one_of("dtype", self.dtype, DTYPES)
        if whole("draws", self.draws) > 1 and not self.random:
            raise InputError("draws is the number of draws of [random], but there is no [random].")
        whole("draw_seed", self.draw_seed, at_least=0)
        if self.rows_per_shard is not None:
            whole("rows_per_shard", self.rows_per_shard)
        names: set[str] = set()
        for table, settings in (
            ("fixed", self.fixed),
            ("grid", self.grid),
            ("list", self.list),
            ("random", self.random),
        ):
            self._check_table(table, settings, names)
            names |= set(settings)
        if len({len(values) for values in self.list.values()}) > 1:
            got = ", ".join(f"{name} {len(values)}" for name, values in self.list.items())
            raise InputError(f"the lists of [list] are read side by side and must be equally long, got {got}.")
        for group in self.groups:
            self.program(group).check(self.data(group.rows))

    def _check_table(self, table: str, settings: Any, before: set[str]) -> None:
        if not isinstance(settings, Mapping):
            raise InputError(f"{table} must be a table of settings, got {settings!r}.")
        for name in settings:
            if name in before:
                raise InputError(f"setting {name!r} must be in one of [fixed], [grid], [list], [random], got it twice.")
            setting = self._settings[one_of(f"setting of [{table}]", name, self._settings)]
            values = axis_values(table, name, settings[name])
            for value in values:
                check_value(table, name, value, setting)

    @property
    def kind(self) -> Any:
        module, name = KINDS[self.evaluate]
        return getattr(importlib.import_module(f"mfabric_jax.apps.{module}"), name)

    @property
    def _settings(self) -> Mapping[str, Setting]:
        return self.kind.SETTINGS

    def program(self, group: CodeGroup) -> Any:
        first = {name: values.tolist()[0] for name, values in self.data(group.rows[:1]).items()}
        return self.kind(group.code, first, self.dtype)

    @property
    def count(self) -> int:
        return sum(len(group.rows) for group in self.groups)

    @functools.cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns [N] of the settings that vary, axis by axis."""
        varied = columns(self.grid, self.list, self.random, self.draws, self.draw_seed)
        for name, values in varied.items():
            if self._settings[name].type is float and values.dtype.kind in "iu":
                varied[name] = values.astype(np.float64)
        return varied

    def data(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the input columns [N] of a program; fixed values are repeated."""
        inputs = {}
        for name, setting in self._settings.items():
            if setting.data:
                fixed = self.fixed.get(name, setting.default)
                inputs[name] = self.columns[name][rows] if name in self.columns else np.full(len(rows), fixed)
        return inputs

    def check(self) -> None:
        """Do nothing: values are checked at construction."""

    def identity(self) -> dict[str, Any]:
        """Return what identifies this sweep in its folder."""
        return dataclasses.asdict(self) | {"rows_per_shard": self.rows_per_shard or self.kind.ROWS_PER_SHARD}

    def files(self) -> dict[str, Path]:
        named = {str(group.code.get(name)) for group in self.groups for name in (*OF_FILES, *file_settings())}
        return {name: Path(file_of(name)) for name in sorted(named)}

    def compute_part(
        self, part: "SweepPart", before: Any = None, solved: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute a part: return the columns of its rows and the footer of its file."""
        program = self.program(part.group)
        results = program.rows(self.data(part.rows), self.full_part(part.group), before)
        settings = {name: values[part.rows] for name, values in self.columns.items()}
        same = {name: np.full(len(part.rows), value, object) for name, value in program.constant_columns().items()}
        settled = {name: same[name] for name in same.keys() & settings if not program.SETTINGS[name].data}
        varied = {name: "varies" for name in self.columns if program.SETTINGS[name].data}
        footer = {"command": "sweep", "sweep": _short(self.identity())} | provenance(self.dtype)
        footer |= {"group": program.effective() | varied, "part": part.number}
        return {INDEX: part.rows} | same | settings | settled | results, footer

    @functools.cached_property
    def groups(self) -> tuple[CodeGroup, ...]:
        """The configurations grouped by static settings, in order of first appearance."""
        code = {name: self.fixed.get(name, s.default) for name, s in self._settings.items() if not s.data}
        varied = {name: values.tolist() for name, values in self.columns.items() if not self._settings[name].data}
        if not varied:
            rows = len(next(iter(self.columns.values()))) if self.columns else self.draws
            return (CodeGroup(code, np.arange(rows)),)
        members: dict[tuple, Any] = {}
        for row, key in enumerate(zip(*varied.values(), strict=True)):
            members.setdefault(key, []).append(row)
        return tuple(
            CodeGroup(code | dict(zip(varied, key, strict=True)), np.asarray(rows)) for key, rows in members.items()
        )

    @functools.cached_property
    def parts(self) -> tuple[SweepPart, ...]:
        pieces = [
            (group, group.rows[start : start + self.full_part(group)])
            for group in self.groups
            for start in range(0, len(group.rows), self.full_part(group))
        ]
        return tuple(SweepPart(number, group, rows) for number, (group, rows) in enumerate(pieces))

    def full_part(self, group: CodeGroup) -> int:
        """Return the rows of each file of the group, except the last."""
        return min(self.rows_per_shard or self.kind.ROWS_PER_SHARD, len(group.rows))


def _short(sweep: Mapping[str, Any]) -> dict[str, Any]:
    lists = {
        name: values if len(values) <= LISTED else f"{len(values)} values in {CONFIG}"
        for name, values in sweep["list"].items()
    }
    return {**sweep, "list": lists}


def read_sweep(path: str | Path) -> Sweep:
    """Read the design space of a .toml or .json file. Raise InputError if it is unreadable or has unknown keys."""
    content = read_settings(path, "sweep settings")
    with in_file(path):
        for name in content:
            one_of("sweep setting", name, [field.name for field in dataclasses.fields(Sweep)])
        return Sweep(**{name: _by_path(value) if name in TABLES else value for name, value in content.items()})


def _by_path(table: Any, prefix: str = "") -> Any:
    """Return nested tables as settings by dotted path; random axes stay tables."""
    if not isinstance(table, Mapping):
        return table
    settings: dict[str, Any] = {}
    for name, value in table.items():
        inner = isinstance(value, Mapping) and not {"of", "low", "high"} & set(value)
        settings |= _by_path(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return settings
